package hashing_test

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-inbox/watermill-inbox/hashing"
)

func newHasher(t testing.TB, options ...hashing.Option) *hashing.Hasher {
	t.Helper()
	hasher, err := hashing.New(options...)
	require.NoError(t, err)
	return hasher
}

func hashOf(t testing.TB, hasher *hashing.Hasher, payload []byte) string {
	t.Helper()
	hash, err := hasher.Hash(message.NewMessage("", payload))
	require.NoError(t, err)
	return hash
}

// payloadPair is an entry of testdata/payloads.txt.
type payloadPair struct {
	id, verdict, why string
	exclude          []string
	a, b             []byte
}

func readPayloadPairs(t testing.TB) []payloadPair {
	t.Helper()
	text, err := os.ReadFile("testdata/payloads.txt")
	require.NoError(t, err)
	var pairs []payloadPair
	for _, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] != ' ' {
			fields := strings.SplitN(line, "  ", 3)
			require.Len(t, fields, 3, line)
			pairs = append(pairs, payloadPair{id: fields[0], verdict: fields[1], why: fields[2]})
			continue
		}
		pair := &pairs[len(pairs)-1]
		switch name, value, _ := strings.Cut(line[2:], " "); name {
		case "exclude":
			pair.exclude = strings.Split(value, " ")
		case "a":
			pair.a = readPayload(t, value)
		case "b":
			pair.b = readPayload(t, value)
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	return pairs
}

func readPayload(t testing.TB, text string) []byte {
	t.Helper()
	if quoted, ok := strings.CutPrefix(text, "go "); ok {
		plain, err := strconv.Unquote(quoted)
		require.NoError(t, err, text)
		return []byte(plain)
	}
	if nested, ok := strings.CutPrefix(text, "nested "); ok {
		fields := strings.SplitN(nested, " ", 2)
		levels, err := strconv.Atoi(fields[0])
		require.NoError(t, err)
		var around [3]string
		decoder := json.NewDecoder(strings.NewReader(fields[1]))
		for i := range around {
			require.NoError(t, decoder.Decode(&around[i]))
		}
		return []byte(around[0] + strings.Repeat("[", levels) + around[1] + strings.Repeat("]", levels) + around[2])
	}
	return []byte(text)
}

func TestEveryPairOfPayloadsHasItsVerdict(t *testing.T) {
	t.Parallel()
	pairs := readPayloadPairs(t)
	require.Len(t, pairs, 121)
	for _, pair := range pairs {
		t.Run(pair.id+" "+pair.why, func(t *testing.T) {
			t.Parallel()
			hasher := newHasher(t, hashing.Exclude(pair.exclude...))
			strict := newHasher(t, hashing.Exclude(pair.exclude...), hashing.Strict())
			verdict := strings.TrimPrefix(pair.verdict, "error ")

			_, errA := strict.Hash(message.NewMessage("", pair.a))
			_, errB := strict.Hash(message.NewMessage("", pair.b))
			if verdict == pair.verdict {
				require.NoError(t, errA)
				require.NoError(t, errB)
			} else {
				require.True(t, errA != nil || errB != nil, "Strict refuses neither")
			}

			a, b := hashOf(t, hasher, pair.a), hashOf(t, hasher, pair.b)
			requireVerdict(t, verdict, a == b)
			differences, err := hasher.Diff(message.NewMessage("", pair.a), message.NewMessage("", pair.b))
			require.NoError(t, err)
			require.Equal(t, a == b, len(differences) == 0, "Diff finds %q", differences)
		})
	}
}

func requireVerdict(t *testing.T, want string, isEqual bool) {
	t.Helper()
	require.Contains(t, []string{"equal", "differ"}, want)
	require.Equal(t, want == "equal", isEqual)
}

type messagePair struct {
	ID, Want, Why, Level string
	Options              pairOptions
	A, B                 *pairMessage
}

type pairOptions struct {
	Exclude, Metadata, Attrs []string
	Strict                   bool
	Key                      string
}

type pairMessage struct {
	UUID, Payload string
	Metadata      message.Metadata
}

func (m *pairMessage) message() *message.Message {
	msg := message.NewMessage(m.UUID, []byte(m.Payload))
	msg.Metadata = m.Metadata
	return msg
}

func (o pairOptions) hasher(t *testing.T, more ...hashing.Option) *hashing.Hasher {
	t.Helper()
	options := append(more, hashing.Exclude(o.Exclude...), hashing.Metadata(o.Metadata...))
	if o.Strict {
		options = append(options, hashing.Strict())
	}
	if o.Key != "" {
		options = append(options, hashing.Keyed(o.Key, []byte(strings.Repeat(o.Key, 32))))
	}
	return newHasher(t, options...)
}

func TestEveryPairOfMessagesHasItsVerdict(t *testing.T) {
	t.Parallel()
	var pairs []messagePair
	readJSON(t, "testdata/messages.json", &pairs)
	require.Len(t, pairs, 34)
	for _, pair := range pairs {
		t.Run(pair.ID+" "+pair.Why, func(t *testing.T) {
			t.Parallel()
			var hasher *hashing.Hasher
			if pair.Level == "cloudevent" {
				hasher = pair.Options.hasher(t, hashing.CloudEvents(pair.Options.Attrs...))
			} else {
				hasher = pair.Options.hasher(t)
			}
			a, errA := hasher.Hash(pair.A.message())
			b, errB := hasher.Hash(pair.B.message())
			if pair.Want == "error" {
				require.True(t, errA != nil || errB != nil)
				return
			}
			require.NoError(t, errA)
			require.NoError(t, errB)
			requireVerdict(t, pair.Want, a == b)
			differences, err := hasher.Diff(pair.A.message(), pair.B.message())
			require.NoError(t, err)
			require.Equal(t, a == b, len(differences) == 0, "Diff finds %q", differences)
		})
	}
}

func TestEveryStoredHashHasItsVerdict(t *testing.T) {
	t.Parallel()
	var pairs []struct {
		ID, Want, Why string
		Stored        json.RawMessage
		Current       pairOptions
		Retired       []struct {
			Config pairOptions
			Trust  string
		}
		A, B *pairMessage
	}
	readJSON(t, "testdata/schemes.json", &pairs)
	require.Len(t, pairs, 9)
	trusts := map[string]hashing.Trust{"equal": hashing.OnlyEqual, "different": hashing.OnlyDifferent, "both": hashing.Both}
	verdicts := map[string]hashing.Verdict{"equal": hashing.Equal, "differ": hashing.Different, "incomparable": hashing.Incomparable}
	for _, pair := range pairs {
		t.Run(pair.ID+" "+pair.Why, func(t *testing.T) {
			t.Parallel()
			var stored string
			if pair.A == nil {
				require.NoError(t, json.Unmarshal(pair.Stored, &stored))
			} else {
				var options pairOptions
				require.NoError(t, json.Unmarshal(pair.Stored, &options))
				var err error
				stored, err = options.hasher(t).Hash(pair.A.message())
				require.NoError(t, err)
			}
			for _, trust := range []string{"stated", "derived"} {
				var retired []hashing.Retired
				for _, r := range pair.Retired {
					one := hashing.Retired{Hasher: r.Config.hasher(t)}
					if trust == "stated" {
						one.Trust = trusts[r.Trust]
					}
					retired = append(retired, one)
				}
				verifier, err := hashing.NewVerifier(pair.Current.hasher(t), retired...)
				require.NoError(t, err)
				verdict, err := verifier.Compare(stored, pair.B.message())
				require.NoError(t, err)
				require.Equal(t, verdicts[pair.Want], verdict, "with %s trust", trust)
			}
		})
	}
}

func readJSON(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
}
