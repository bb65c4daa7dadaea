package difftest

import (
	"crypto/sha256"
	"encoding/base64"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// jsontextHash is what a user would write without package hashing.
func jsontextHash(b *testing.B, payload []byte) string {
	value := jsontext.Value(append([]byte(nil), payload...))
	if err := value.Canonicalize(); err != nil {
		b.Fatal(err)
	}
	sum := sha256.Sum256(value)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
