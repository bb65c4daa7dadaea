package difftest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

func newHasher(t testing.TB, options ...hashing.Option) *hashing.Hasher {
	t.Helper()
	hasher, err := hashing.New(options...)
	require.NoError(t, err)
	return hasher
}

// canonical is what hashing hashes of a payload, taken out of its explanation.
func canonical(t testing.TB, hasher *hashing.Hasher, payload []byte) (string, error) {
	t.Helper()
	text, err := hasher.Explain(message.NewMessage("", payload))
	if err != nil {
		return "", err
	}
	parts := strings.SplitN(text, "\n", 3)
	require.Len(t, parts, 3)
	return parts[2], nil
}

// TestRoundedNumbersHaveTheCanonicalFormOfRFC8785 compares whole documents in float64 mode, where both follow RFC 8785.
func TestRoundedNumbersHaveTheCanonicalFormOfRFC8785(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	hasher := newHasher(t, hashing.Numbers(hashing.Float64), hashing.Strict())
	for range 20_000 {
		document, err := json.Marshal(randomValue(r, 3))
		require.NoError(t, err)
		want := jsontext.Value(append([]byte(nil), document...))
		require.NoError(t, want.Canonicalize())
		got, err := canonical(t, hasher, document)
		require.NoError(t, err)
		if got != string(want) {
			t.Fatalf("seed %d: %s becomes %s, and by jsontext %s", seed, document, got, want)
		}
	}
}

func randomValue(r *rand.Rand, depth int) any {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch r.IntN(kinds) {
	case 0:
		return nil
	case 1:
		for {
			if f := math.Float64frombits(r.Uint64()); !math.IsNaN(f) && !math.IsInf(f, 0) {
				return f
			}
		}
	case 2:
		return json.Number(fmt.Sprintf("%d.%de%d", r.IntN(1000), r.IntN(1000), r.IntN(40)-20))
	case 3:
		return randomText(r)
	case 4:
		elements := []any{}
		for range r.IntN(4) {
			elements = append(elements, randomValue(r, depth-1))
		}
		return elements
	default:
		members := map[string]any{}
		for range r.IntN(6) {
			members[randomText(r)] = randomValue(r, depth-1)
		}
		return members
	}
}

func randomText(r *rand.Rand) string {
	var text strings.Builder
	for range r.IntN(5) {
		text.WriteRune([]rune{'a', 'Z', '"', '\\', '/', '\n', 0x1f, 0x7f, 'é', 0x2028, 0xfb33, 0xffff, 0x1f602, 0xe000, 0x10ffff}[r.IntN(15)])
	}
	return text.String()
}

func FuzzCanonicalizeAgainstJSONText(f *testing.F) {
	for _, seed := range []string{`{"b":1,"a":[1.50,-0,1e21]}`, `{"\u0061":1,"a":2}`, `"\ud83d"`, `[1e400]`, "\xff"} {
		f.Add([]byte(seed))
	}
	hasher, err := hashing.New(hashing.Numbers(hashing.Float64), hashing.Strict())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		want := jsontext.Value(append([]byte(nil), document...))
		if want.Canonicalize() != nil || bytes.Contains(want, []byte("1.7976931348623157e+308")) {
			return // jsontext takes the largest float64 for numbers beyond it, where RFC 8785 has no answer
		}
		got, err := canonical(t, hasher, document)
		if err != nil {
			t.Fatalf("%q has a canonical form by jsontext, %q, and is refused: %v", document, want, err)
		}
		if got != string(want) {
			t.Fatalf("%q becomes %q, and by jsontext %q", document, got, want)
		}
	})
}

func BenchmarkCanonicalizeAndHash(b *testing.B) {
	order := []byte(`{"order_id":"018f3c1e-7b7a-7c3e-9d5b-1f2a3b4c5d6e","customer":{"id":48213,"name":"Zoë Müller","tier":"gold"},"currency":"EUR","total":1849.50,"lines":[{"sku":"A-1001","quantity":2,"price":499.75},{"sku":"B-2002","quantity":1,"price":850}],"placed_at":"2026-03-01T09:30:00Z","note":"ring twice\nthen wait","express":true,"v":3}`)
	b.Run("hashing", func(b *testing.B) {
		hasher := newHasher(b)
		msg := message.NewMessage("", order)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := hasher.Hash(msg); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("jsontext and sha256", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			jsontextHash(b, order)
		}
	})
}
