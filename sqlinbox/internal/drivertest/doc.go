// Package drivertest is a module of its own, so that the drivers that it tests are not among the requirements of
// the library's module.
package drivertest
