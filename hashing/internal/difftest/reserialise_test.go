package difftest

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// documents have numbers of at most 15 digits, which every language keeps.
var documents = []string{
	`{"b":{"z":1,"a":[1,2.50,1e2]},"a":"é\u2028/\n\"","n":null,"t":true}`,
	`{"amount":123456789012.345,"small":0.000001,"tiny":1e-7,"big":1e21,"zero":0}`,
	`{"😂":1,"דּ":2,"":3,"a b":[[],{}]}`,
	`"text"`, `[0.1, 1E+2, -5]`, `42`,
}

func TestWhatOtherLanguagesWriteAgainIsEqual(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t)
	for name, command := range map[string][]string{
		"encoding/json": nil,
		"Node":          {"node", "-e", `process.stdout.write(JSON.stringify(JSON.parse(require("fs").readFileSync(0, "utf8"))))`},
		"Python":        {"python3", "-c", `import json,sys; json.dump(json.load(sys.stdin), sys.stdout, indent=2)`},
		"jq":            {"jq", "-S", "."},
	} {
		if command != nil {
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Logf("%s is not on this machine: not compared", command[0])
				continue
			}
		}
		for _, document := range documents {
			again := rewrite(t, command, document)
			before, err := hasher.Hash(message.NewMessage("", []byte(document)))
			require.NoError(t, err)
			after, err := hasher.Hash(message.NewMessage("", again))
			require.NoError(t, err)
			require.Equal(t, before, after, "%s makes %s of %s", name, again, document)
		}
	}
}

func TestABigIntegerThatWasRoundedOnTheWayIsDifferent(t *testing.T) {
	t.Parallel()
	hasher := newHasher(t)
	before, err := hasher.Hash(message.NewMessage("", []byte(`{"id":9007199254740993}`)))
	require.NoError(t, err)
	after, err := hasher.Hash(message.NewMessage("", rewrite(t, nil, `{"id":9007199254740993}`)))
	require.NoError(t, err)
	require.NotEqual(t, before, after)
}

// rewrite reads and writes a document with a command, or with encoding/json into any.
func rewrite(t *testing.T, command []string, document string) []byte {
	t.Helper()
	if command == nil {
		var value any
		require.NoError(t, json.Unmarshal([]byte(document), &value))
		again, err := json.Marshal(value)
		require.NoError(t, err)
		return again
	}
	run := exec.Command(command[0], command[1:]...)
	run.Stdin = bytes.NewReader([]byte(document))
	again, err := run.Output()
	require.NoError(t, err)
	return bytes.TrimSpace(again)
}
