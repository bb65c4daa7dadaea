package middleware_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/watermill-inbox/watermill-inbox/"

// A program that imports the library links no driver, no broker's client and no metrics.
func TestThePackagesImportOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	watermill := []string{
		"github.com/ThreeDotsLabs/watermill", // and what its message and middleware packages need:
		"github.com/cenkalti/backoff",
		"github.com/google/uuid",
		"github.com/lithammer/shortuuid",
		"github.com/oklog/ulid",
		"github.com/pkg/errors",
		"github.com/sony/gobreaker",
		// What the outbox is built on. It links no driver either.
		"github.com/ThreeDotsLabs/watermill-sql/v3",
	}
	for _, test := range []struct {
		pkg string
		own []string // packages of this module that it may import
	}{
		{"hashing", nil},
		{"middleware", []string{"hashing"}},
		{"sqlinbox", []string{"hashing", "middleware"}},
	} {
		t.Run(test.pkg, func(t *testing.T) {
			t.Parallel()
			for _, dependency := range dependencies(t, module+test.pkg) {
				if own, ok := strings.CutPrefix(dependency, module); ok {
					require.Contains(t, append(test.own, test.pkg), own)
					continue
				}
				require.True(t, hasOneOfPrefixes(dependency, watermill), "%s imports %s", test.pkg, dependency)
			}
		})
	}
}

func TestHashingImportsOnlyTheMessage(t *testing.T) {
	t.Parallel()
	output, err := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, module+"hashing").Output()
	require.NoError(t, err)
	for _, imported := range strings.Fields(string(output)) {
		if strings.Contains(imported, ".") {
			require.Equal(t, "github.com/ThreeDotsLabs/watermill/message", imported)
		}
	}
}

func TestTheMiddlewareKnowsNoSQL(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"hashing", "middleware"} {
		output, err := exec.Command("go", "list", "-deps", module+pkg).Output()
		require.NoError(t, err)
		require.NotContains(t, strings.Fields(string(output)), "database/sql", pkg)
	}
}

// dependencies are the packages outside of the standard library that pkg links.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	output, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg).Output()
	require.NoError(t, err)
	return strings.Fields(string(output))
}

func hasOneOfPrefixes(text string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if text == prefix || strings.HasPrefix(text, prefix+"/") {
			return true
		}
	}
	return false
}
