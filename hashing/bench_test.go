package hashing_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

// order is a JSON payload of 320 bytes.
var order = []byte(`{"order_id":"018f3c1e-7b7a-7c3e-9d5b-1f2a3b4c5d6e","customer":{"id":48213,"name":"Zoë Müller","tier":"gold"},"currency":"EUR","total":1849.50,"lines":[{"sku":"A-1001","quantity":2,"price":499.75},{"sku":"B-2002","quantity":1,"price":850}],"placed_at":"2026-03-01T09:30:00Z","note":"ring twice\nthen wait","express":true,"v":3}`)

func largePayload(size int) []byte {
	var text strings.Builder
	text.WriteString(`{"rows":[`)
	for i := 0; text.Len() < size; i++ {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"id":%d,"name":"customer %d","balance":%d.%02d,"active":true,"tags":["a","b"]}`, i, i, i*7, i%100)
	}
	text.WriteString(`]}`)
	return []byte(text.String())
}

func benchmark(b *testing.B, payload []byte, options ...hashing.Option) {
	b.Helper()
	hasher := newHasher(b, options...)
	msg := message.NewMessage("", payload)
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := hasher.Hash(msg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	b.Run("320B", func(b *testing.B) { benchmark(b, order) })
	b.Run("320B two exclusions", func(b *testing.B) { benchmark(b, order, hashing.Exclude("/placed_at", "/lines/*/price")) })
	b.Run("320B keyed", func(b *testing.B) { benchmark(b, order, hashing.Keyed("k1", secret)) })
	b.Run("1MiB", func(b *testing.B) { benchmark(b, largePayload(1<<20)) })
	b.Run("320B sha256 of the raw bytes", func(b *testing.B) {
		b.SetBytes(int64(len(order)))
		b.ReportAllocs()
		for b.Loop() {
			sum := sha256.Sum256(order)
			_ = base64.RawURLEncoding.EncodeToString(sum[:])
		}
	})
}

// BenchmarkHostile bounds the time of what a hostile producer can send.
func BenchmarkHostile(b *testing.B) {
	deep := func(levels int, inner string) []byte {
		return []byte(strings.Repeat(`{"b":`, levels) + inner + strings.Repeat(`,"a":1}`, levels))
	}
	members := func(count int, reversed bool) []byte {
		var text strings.Builder
		for i := range count {
			at := i
			if reversed {
				at = count - 1 - i
			}
			fmt.Fprintf(&text, `,"member%06d":%d`, at, i)
		}
		return []byte("{" + text.String()[1:] + "}")
	}
	for name, payload := range map[string][]byte{
		"20 MB of [": []byte(strings.Repeat("[", 20<<20)),
		"9000 levels out of order over a 1 MB string": deep(9000, `"`+strings.Repeat("x", 1<<20)+`"`),
		"50000 members sorted":                        members(50_000, false),
		"50000 members reversed":                      members(50_000, true),
		"huge exponent":                               []byte(`1e999999999`),
		"16 MB":                                       largePayload(16 << 20),
		"16 MB of numbers":                            []byte("[" + strings.Repeat("0,", 8<<20) + "0]"),
	} {
		b.Run(name, func(b *testing.B) { benchmark(b, payload) })
	}
}
