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
