//go:build !embedded

package main_test

import (
	"database/sql"
	"os"
	"os/exec"
	"testing"

	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
)

func TestItFailsAndNamesWhatDisagrees(t *testing.T) {
	t.Parallel()
	orders := newOrders(t, "-n", "50", "-collisions", "0.1")
	require.Contains(t, orders.finish(t), "reconciles")

	db, err := sql.Open("postgres", os.Getenv("INBOX_TEST_POSTGRESQL"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	_, err = db.Exec(`INSERT INTO ` + orders.schema + `.orders SELECT * FROM ` + orders.schema + `.orders WHERE order_number = 'O-7'`)
	require.NoError(t, err)

	output, err := exec.Command(orders.program, orders.flags...).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", output)
	require.Equal(t, 1, exit.ExitCode(), "%s", output)
	require.Contains(t, string(output), "does not reconcile")
	require.Contains(t, string(output), "effects 51, accepted entries 50")
	require.Contains(t, string(output), "different orders with an effect 50, effects 51")
}

func TestItGoesOnWithAKnownNameOnlyUnderTheSameFlags(t *testing.T) {
	t.Parallel()
	orders := newOrders(t, "-n", "20")
	require.Contains(t, orders.finish(t), "reconciles")

	output, err := exec.Command(orders.program, append(orders.flags, "-seed", "2")...).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "was started with -n 20 ")
	require.Contains(t, string(output), "-clean")
}

func TestItPrintsNoPassword(t *testing.T) {
	t.Parallel()
	orders := newOrders(t, "-n", "20")
	for _, flags := range [][]string{
		{"-h"},
		{"-postgresql", "postgres://user:hunter2@127.0.0.1:1/x"},
		{"-postgresql", "postgres://user:hunter2@host:port/x"},
		{"-postgresql", "postgres://user:hunter2%zz@host/x"},
		{"-postgresql", "host='127.0.0.1' password='hunter2"},
		{"-amqp", "amqp://user:hunter2@127.0.0.1:1/"},
		{"-amqp", "amqp://user:hunter2@host:port/"},
		{"-amqp", "amqp://user:hunter2%zz@host/"},
	} {
		command := exec.Command(orders.program, append(orders.flags, flags...)...)
		if flags[0] == "-h" {
			command.Env = append(os.Environ(), "ORDERS_POSTGRESQL=postgres://user:hunter2@host/x", "ORDERS_AMQP=amqp://user:hunter2@host/")
		}
		output, err := command.CombinedOutput()
		if flags[0] != "-h" {
			require.Error(t, err, "%s", output)
		}
		require.NotEmpty(t, output)
		require.NotContains(t, string(output), "hunter2")
	}
}
