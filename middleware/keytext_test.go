package middleware

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestWhatNoDatabaseCanStoreIsNoKey(t *testing.T) {
	t.Parallel()
	for reason, key := range map[string]string{
		"empty":         "",
		"NUL":           "a\x00b",
		"invalid UTF-8": "a\xff",
		"10 kB":         strings.Repeat("k", 10_000),
	} {
		_, err := storableKey(key)
		require.Error(t, err, reason)
		require.Less(t, len(err.Error()), 400, reason)
	}
}

func TestAKeyIsStoredAsItIsOrAsADigestThatNobodyCanForge(t *testing.T) {
	t.Parallel()
	short := strings.Repeat("k", maxKeyText)
	stored, err := storableKey(short)
	require.NoError(t, err)
	require.Equal(t, short, stored)

	long := strings.Repeat("k", maxKeyText+1)
	stored, err = storableKey(long)
	require.NoError(t, err)
	require.Len(t, stored, len(digestPrefix)+64)

	forged, err := storableKey(stored)
	require.NoError(t, err)
	require.NotEqual(t, stored, forged, "the digest of another key can be sent as a key")
}

// The limits and the form of a digest are stored: another one would make known keys look new.
func TestTheStoredFormOfAKeyDoesNotChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ reason, key, want string }{
		{"255 bytes are stored as they are", strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{"256 bytes are not", strings.Repeat("k", 256), "sha256:ce16fe78208a4e93f7158e62393680e025b2ad584f4e875ce903a654bb74cf93"},
		{"bytes count, not characters", strings.Repeat("é", 128), "sha256:e42dd264fd5cf1bc947505b995dceb9ae0a2d2a4c99b4ce5ea02f36526819280"},
		{"8192 bytes are still a key", strings.Repeat("k", 8192), "sha256:3ea03d0be39011341afc1d735ee4faf3446ecffedb9440453c95dbb3bbb0a6f7"},
		{"what looks like a digest is digested", "sha256:", "sha256:9fd714ce6f63c3b320c944b70e80a5d105fd2f3e2d30ae2fa81370e223f50d07"},
		{"only the exact prefix looks like one", "SHA256:a", "SHA256:a"},
	} {
		stored, err := storableKey(c.key)
		require.NoError(t, err, c.reason)
		require.Equal(t, c.want, stored, c.reason)
		require.Equal(t, c.want, storableText(c.key), "%s, as a description", c.reason)
	}
	_, err := storableKey(strings.Repeat("k", 8193))
	require.ErrorContains(t, err, "8193 bytes")
	require.ErrorContains(t, err, "8192")
}

func TestTheErrorOfABrokenKeyIsShort(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{"\x00", "\xff"} {
		_, err := storableKey(strings.Repeat("k", 8000) + broken)
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrNoKey, "it is there")
		require.Less(t, len(err.Error()), 150)
	}
}

// requireStorableOrRefused fails if a key is stored in a form that some database refuses.
func requireStorableOrRefused(t *testing.T, key string) {
	t.Helper()
	stored, err := storableKey(key)
	again, errAgain := storableKey(key)
	require.Equal(t, stored, again)
	require.Equal(t, err == nil, errAgain == nil)
	if err != nil {
		require.Empty(t, stored)
		return
	}
	require.NotEmpty(t, stored)
	require.True(t, utf8.ValidString(stored))
	require.NotContains(t, stored, "\x00")
	require.LessOrEqual(t, len(stored), maxKeyText)
}

func TestADescriptionCanAlwaysBeStoredAndStaysDifferent(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, text := range []string{"", "OrderPlaced", "a\x00", "a\x00b", "\xff", "\xfe", strings.Repeat("x", 300), strings.Repeat("x", 301), digest("a\x00")} {
		stored := storableText(text)
		require.True(t, utf8.ValidString(stored))
		require.NotContains(t, stored, "\x00")
		require.LessOrEqual(t, len(stored), maxKeyText)
		require.NotContains(t, seen, stored)
		seen[stored] = text
	}
}
