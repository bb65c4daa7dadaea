package main_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestItEndsWithTheReportThatTheReadmeShows(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // the build included
	defer cancel()

	output, err := exec.CommandContext(ctx, "go", "run", ".").Output()
	require.NoError(t, err, "%s", output)

	lines := strings.Split(strings.TrimRight(string(output), "\n"), "\n")
	require.Greater(t, len(lines), 5)
	require.Equal(t, []string{
		"deliveries=4",
		"accepted=2",
		"duplicates=2",
		"inbox_rows=2",
		"business_effects=2",
	}, lines[len(lines)-5:], "%s", output)

	require.Equal(t, 2, strings.Count(string(output), "the ack is lost"), "%s", output)
	require.Contains(t, string(output), "collisions=1, counted apart")
	require.Contains(t, string(output), "in the poison queue")
}
