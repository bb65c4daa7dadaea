package hashing

import "testing"

// BenchmarkCanonical is the canonical form alone, with the memory of the document before.
func BenchmarkCanonical(b *testing.B) {
	payload := []byte(`{"order_id":"018f3c1e-7b7a-7c3e-9d5b-1f2a3b4c5d6e","customer":{"id":48213,"name":"Zoë Müller","tier":"gold"},"currency":"EUR","total":1849.50,"lines":[{"sku":"A-1001","quantity":2,"price":499.75},{"sku":"B-2002","quantity":1,"price":850}],"placed_at":"2026-03-01T09:30:00Z","note":"ring twice\nthen wait","express":true,"v":3}`)
	var p parser
	var out []byte
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if err := p.parse(payload, nil, false); err != nil {
			b.Fatal(err)
		}
		out = p.appendCanonical(out[:0])
	}
}

func TestTheCanonicalFormAllocatesNothing(t *testing.T) {
	payload := []byte(`{"b":{"z":1.50,"a":["\u00e9",{"d":1,"c":2}]},"a":"text"}`)
	var p parser
	var out []byte
	allocations := testing.AllocsPerRun(100, func() {
		if err := p.parse(payload, nil, false); err != nil {
			t.Fatal(err)
		}
		out = p.appendCanonical(out[:0])
	})
	if allocations != 0 {
		t.Fatalf("%v allocations", allocations)
	}
}
