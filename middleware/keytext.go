package middleware

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// maxKeyText is the longest key, in bytes, that is stored as it is: every database can index that.
	maxKeyText = 255
	// maxKeyLength is the longest key, in bytes, that is taken for one at all.
	maxKeyLength = 8192

	digestPrefix = "sha256:"
)

// storableKey is the form in which a key is stored: as it is, or as its SHA-256 digest if it is longer than
// 255 bytes. An empty key is ErrNoKey. What some database cannot store (PostgreSQL refuses NUL and invalid UTF-8), or
// is no reasonable key, is another error: a hostile message must not make the insert fail, be nacked and come again for
// ever, and one message must not be a key on one database and an error on another.
//
// Stored keys live as long as their entries: neither the limits nor the form of the digest may change.
func storableKey(key string) (string, error) {
	switch {
	case key == "":
		return "", fmt.Errorf("%w: it is empty", ErrNoKey)
	case len(key) > maxKeyLength:
		return "", fmt.Errorf("it has %d bytes, more than %d", len(key), maxKeyLength)
	case !utf8.ValidString(key):
		return "", fmt.Errorf("it is not valid UTF-8: %.64q", key)
	case strings.ContainsRune(key, 0):
		return "", fmt.Errorf("it contains a NUL byte: %.64q", key)
	case len(key) > maxKeyText, strings.HasPrefix(key, digestPrefix):
		// Also a short key that looks like a digest, so that nobody can send the digest of somebody else's key.
		return digest(key), nil
	default:
		return key, nil
	}
}

// storableText is the form in which a text that only describes an entry is stored. It never fails, and two
// different texts stay different.
func storableText(text string) string {
	if len(text) > maxKeyText || !utf8.ValidString(text) || strings.ContainsRune(text, 0) || strings.HasPrefix(text, digestPrefix) {
		return digest(text)
	}
	return text
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return digestPrefix + hex.EncodeToString(sum[:])
}
