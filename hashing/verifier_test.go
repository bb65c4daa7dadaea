package hashing_test

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

func TestTheZeroVerdictIsNotEqual(t *testing.T) {
	t.Parallel()
	var verdict hashing.Verdict
	require.NotEqual(t, hashing.Equal, verdict)
	require.Equal(t, "incomparable", verdict.String())
	require.Equal(t, "equal", hashing.Equal.String())
	require.Equal(t, "different", hashing.Different.String())
}

func TestWhatCannotBeReadIsIncomparable(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t)
	verifier, err := hashing.NewVerifier(hasher)
	require.NoError(t, err)
	msg := message.NewMessage("", []byte(`{}`))
	hash, err := hasher.Hash(msg)
	require.NoError(t, err)
	for reason, stored := range map[string]string{
		"empty":             "",
		"no hash":           "garbage",
		"a later version":   "v2" + strings.TrimPrefix(hash, "v1"),
		"another scheme":    strings.Replace(hash, hash[12:23], "AAAAAAAAAAA", 1),
		"another algorithm": strings.Replace(hash, "sha256", "blake3", 1),
		"an unknown key":    strings.Replace(hash, "sha256", "hmac-sha256.k9", 1),
		"one part more":     hash + ":x",
	} {
		verdict, err := verifier.Compare(stored, msg)
		require.NoError(t, err)
		require.Equal(t, hashing.Incomparable, verdict, reason)
	}
	verdict, err := verifier.Compare(hash, msg)
	require.NoError(t, err)
	require.Equal(t, hashing.Equal, verdict)
}

func TestWhatARetiredSchemeProvesFollowsFromItsOptions(t *testing.T) {
	t.Parallel()
	type options = []hashing.Option
	for _, c := range []struct {
		reason           string
		retired, current options
		same, changed    hashing.Verdict
	}{
		{"it excluded less", nil, options{hashing.Exclude("/ts")}, hashing.Equal, hashing.Incomparable},
		{"it excluded more", options{hashing.Exclude("/ts", "/x")}, options{hashing.Exclude("/ts")}, hashing.Incomparable, hashing.Different},
		{"it excluded below", options{hashing.Exclude("/m/a")}, options{hashing.Exclude("/m")}, hashing.Equal, hashing.Incomparable},
		{"it excluded one of all", options{hashing.Exclude("/m/a")}, options{hashing.Exclude("/m/*")}, hashing.Equal, hashing.Incomparable},
		{"it had more metadata", options{hashing.Metadata("a", "b")}, options{hashing.Metadata("a")}, hashing.Equal, hashing.Incomparable},
		{"it had less metadata", nil, options{hashing.Metadata("a")}, hashing.Incomparable, hashing.Different},
		{"it was exact", nil, options{hashing.Numbers(hashing.Float64)}, hashing.Equal, hashing.Incomparable},
		{"it rounded", options{hashing.Numbers(hashing.Float64)}, nil, hashing.Incomparable, hashing.Different},
		{"it had another key", options{hashing.Keyed("k1", secret)}, options{hashing.Keyed("k2", secret)}, hashing.Equal, hashing.Different},
		{"it had no key", nil, options{hashing.Keyed("k2", secret)}, hashing.Equal, hashing.Different},
		{"it had more attributes", options{hashing.CloudEvents("time")}, options{hashing.CloudEvents()}, hashing.Equal, hashing.Incomparable},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			retired, current := newHasher(t, c.retired...), newHasher(t, c.current...)
			verifier, err := hashing.NewVerifier(current, hashing.Retired{Hasher: retired})
			require.NoError(t, err)
			msg := message.NewMessage("", []byte(`{"a":1}`))
			stored, err := retired.Hash(msg)
			require.NoError(t, err)

			verdict, err := verifier.Compare(stored, msg)
			require.NoError(t, err)
			require.Equal(t, c.same, verdict)
			verdict, err = verifier.Compare(stored, message.NewMessage("", []byte(`{"a":2}`)))
			require.NoError(t, err)
			require.Equal(t, c.changed, verdict)
		})
	}
}

func TestATrustThatCannotBeTrueIsRefused(t *testing.T) {
	t.Parallel()
	content := hashing.Content("pb", func(*message.Message) ([]byte, error) { return nil, nil })
	for problem, retired := range map[string]hashing.Retired{
		"nil":               {},
		"state its Trust":   {Hasher: newHasher(t, content)},
		"prove less":        {Hasher: newHasher(t), Trust: hashing.Both},
		"unknown trust":     {Hasher: newHasher(t), Trust: 9},
		"cannot be derived": {Hasher: newHasher(t, hashing.Exclude("/x"))},
	} {
		t.Run(problem, func(t *testing.T) {
			t.Parallel()
			_, err := hashing.NewVerifier(newHasher(t, hashing.Exclude("/ts")), retired)
			require.ErrorContains(t, err, problem)
		})
	}
	_, err := hashing.NewVerifier(nil)
	require.Error(t, err)
	_, err = hashing.NewVerifier(newHasher(t), hashing.Retired{Hasher: newHasher(t, content), Trust: hashing.OnlyDifferent})
	require.NoError(t, err, "a stated trust is taken where none can be derived")
}
