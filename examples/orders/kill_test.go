//go:build !embedded

package main_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const kills = 5

func TestItReconcilesAfterItWasKilledFiveTimesInMidRun(t *testing.T) {
	t.Parallel()
	orders := newOrders(t, "-n", "2000", "-duplicates", "0.2", "-collisions", "0.01", "-semantic", "0.01")

	for range kills {
		orders.killInMidRun(t)
	}

	report := orders.finish(t)
	require.Contains(t, report, fmt.Sprintf("runs=%d ended_early=%d\n", kills+1, kills))
	require.Contains(t, report, "accepted=2000\n")
	require.Contains(t, report, "effects=2000\n")
	require.Contains(t, report, "billing_inbox_rows=2000\n")
	require.Contains(t, report, "billing_effects=2000\n")
	require.Contains(t, report, "outbox_waiting=0\n")
	require.Contains(t, report, "reconciles")

	again := orders.finish(t)
	require.Contains(t, again, "reconciles", "it must look again without changing anything")
}

// orders is the program with the flags of one run.
type orders struct {
	program string
	flags   []string
	schema  string
}

func newOrders(t *testing.T, flags ...string) orders {
	t.Helper()
	for _, variable := range []string{"INBOX_TEST_POSTGRESQL", "INBOX_TEST_AMQP"} {
		if os.Getenv(variable) == "" {
			t.Fatalf("%s is not set; run the tests with make test, which finds or starts the servers", variable)
		}
	}
	name := "test_" + strings.ToLower(rand.Text())
	o := orders{
		program: filepath.Join(t.TempDir(), "orders"),
		flags:   append(flags, "-progress", "10ms", "-name", name),
		schema:  "orders_example_" + name,
	}
	output, err := exec.Command("go", "build", "-o", o.program, ".").CombinedOutput()
	require.NoError(t, err, "%s", output)
	t.Cleanup(func() {
		output, err := exec.Command(o.program, append(o.flags, "-clean")...).CombinedOutput()
		require.NoError(t, err, "%s", output)
	})
	return o
}

var acceptedNow = regexp.MustCompile(`^progress: .* accepted=(\d+) `)

// killInMidRun starts the program and kills it with SIGKILL after it has accepted some orders, at a moment that
// is different each time. Five times at most 300 orders (and what comes until the signal does) leave some of the 2000.
func (o orders) killInMidRun(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, o.program, o.flags...)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	var complaints strings.Builder
	command.Stderr = &complaints
	require.NoError(t, command.Start())

	enough := 50 + mathrand.IntN(150)
	accepted := 0
	lines := bufio.NewScanner(output)
	for accepted < enough && lines.Scan() {
		if match := acceptedNow.FindStringSubmatch(lines.Text()); match != nil {
			accepted, err = strconv.Atoi(match[1])
			require.NoError(t, err)
		}
	}
	require.GreaterOrEqual(t, accepted, enough, "the program ended by itself: %s", &complaints)
	time.Sleep(mathrand.N(20 * time.Millisecond)) // not always at the same place of the program
	require.NoError(t, command.Process.Kill())
	_, _ = io.Copy(io.Discard, output)
	require.ErrorContains(t, command.Wait(), "killed", "%s", &complaints)
	t.Logf("killed after %d accepted orders", accepted)
}

func (o orders) finish(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, o.program, o.flags...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}
