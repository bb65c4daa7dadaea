package hashing

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

// revision is that of the canonical form. A change of what is hashed, for whatever configuration, needs a new
// one: stored hashes of the old one are then Incomparable and never falsely Different.
const revision = 1

const version = "v1"

// scheme is a short digest of what a configuration hashes. Options that only refuse (Strict) or that stand in the
// stored text by themselves (the key) are no part of it.
func (c *config) scheme() string {
	var text strings.Builder
	fmt.Fprintf(&text, "revision %d\nnumbers %d\n", revision, c.numbers)
	for _, list := range []struct {
		name  string
		items []string
	}{{"exclude", c.excludeText}, {"metadata", c.metadata}, {"attribute", c.attributes}} {
		items := slices.Clone(list.items)
		slices.Sort(items)
		for _, item := range slices.Compact(items) {
			fmt.Fprintf(&text, "%s %q\n", list.name, item)
		}
	}
	fmt.Fprintf(&text, "cloudevents %t\ncontent %q\n", c.cloudEvents, c.contentName)
	sum := sha256.Sum256([]byte(text.String()))
	return base64.RawURLEncoding.EncodeToString(sum[:8])
}

func (c *config) algorithm() string {
	if c.keyID == "" {
		return "sha256"
	}
	return "hmac-sha256." + c.keyID
}

// storedText is a stored hash taken apart.
type storedText struct {
	algorithm string
	scheme    string
}

func parseStored(stored string) (storedText, bool) {
	parts := strings.Split(stored, ":")
	if len(parts) != 5 || parts[0] != version {
		return storedText{}, false
	}
	return storedText{algorithm: parts[2], scheme: parts[3]}, true
}
