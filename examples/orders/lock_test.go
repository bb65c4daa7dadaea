//go:build !embedded

package main_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTwoProcessesWithOneNameReconcileOneAfterTheOther(t *testing.T) {
	t.Parallel()
	orders := newOrders(t, "-n", "200")
	var output [2]strings.Builder
	var commands [2]*exec.Cmd
	for i := range commands {
		commands[i] = exec.Command(orders.program, orders.flags...)
		commands[i].Stdout, commands[i].Stderr = &output[i], &output[i]
		require.NoError(t, commands[i].Start())
	}
	waited := 0
	for i, command := range commands {
		require.NoError(t, command.Wait(), "%s", &output[i])
		require.Contains(t, output[i].String(), "reconciles")
		require.Contains(t, output[i].String(), "ended_early=0")
		waited += strings.Count(output[i].String(), "waiting for another process")
	}
	require.Equal(t, 1, waited)
}
