package testenv

import (
	"testing"
	"time"
)

// Receive returns the next value of a channel, and fails the test at once if
// none comes within the time given or the channel is closed.
func Receive[T any](t testing.TB, within time.Duration, what string, ch <-chan T) T {
	t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatalf("closed: %s", what)
		}
		return v
	case <-limit.C:
		t.Fatalf("not within %v: %s", within, what)
	}
	panic("unreachable")
}

// Closed waits until a channel is closed, and fails the test at once if it is
// not within the time given.
func Closed(t testing.TB, within time.Duration, what string, ch <-chan struct{}) {
	t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	select {
	case <-ch:
	case <-limit.C:
		t.Fatalf("not within %v: %s", within, what)
	}
}
