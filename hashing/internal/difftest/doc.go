// Package difftest compares package hashing with other implementations: canonical JSON with go-json-experiment's
// jsontext, events with the official CloudEvents SDK, payloads with what other languages and PostgreSQL make of them.
// It is a module of its own, so that nobody who uses hashing inherits what it is compared with.
package difftest
