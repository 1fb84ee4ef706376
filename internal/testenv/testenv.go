// Package testenv is what tests share: where the servers are, names of their own on
// them, waiting without sleeping, and a proxy that can fail on purpose.
package testenv

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// AMQPURL is the test broker's. The test fails where it is not set.
func AMQPURL(t testing.TB) string {
	t.Helper()
	return env(t, "SPILLWAY_AMQP_URL")
}

// PostgresDSN is the test database's. The test fails where it is not set.
func PostgresDSN(t testing.TB) string {
	t.Helper()
	return env(t, "SPILLWAY_POSTGRES_DSN")
}

// ManagementURL is that of the test broker's management API, with user and
// password and without /api. The test fails where it is not set.
func ManagementURL(t testing.TB) string {
	t.Helper()
	return strings.TrimRight(env(t, "SPILLWAY_MANAGEMENT_URL"), "/")
}

func env(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf(`%s is not set: run make test, or: scripts/services up && eval "$(scripts/services env)"`, name)
	}
	return v
}

// Service returns a service name that no other test has. It begins with the
// test's name, for people who look at the broker meanwhile.
func Service(t testing.TB) string {
	t.Helper()
	name := unique(t, "-")
	if err := retry.CheckService(name); err != nil {
		t.Fatal(err)
	}
	return name
}

// Schema returns the name of a Postgres schema that no other test has. It makes
// nothing; persistence/storetest has schemas that are migrated and dropped.
func Schema(t testing.TB) string {
	t.Helper()
	return unique(t, "_")
}

func unique(t testing.TB, sep string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		}
		return rune(sep[0])
	}, strings.TrimPrefix(t.Name(), "Test"))
	b := make([]byte, 5)
	_, _ = rand.Read(b) // never fails
	return "t" + sep + name[:min(len(name), 40)] + sep + hex.EncodeToString(b)
}

// Eventually waits until cond holds and ends the test if it does not within
// timeout. cond is called from the test's goroutine, about every 5 ms.
func Eventually(t testing.TB, timeout time.Duration, cond func() bool, what string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(timeout); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
}
