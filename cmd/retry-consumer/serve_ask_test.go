package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spillway-mq/spillway/retry"
)

// A refund whose answer gets lost: the other side is asked, a person helps where it cannot tell, and the booking is tried
// again alone. All by serve, by HTTP and by a command, and told by explain.
func TestServeAsks(t *testing.T) {
	servers(t)
	var mu sync.Mutex
	calls := map[string][]string{} // by key
	downstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, step := r.Header.Get("Spillway-Key"), r.Header.Get("Spillway-Handler")
		mu.Lock()
		defer mu.Unlock()
		calls[key] = append(calls[key], step)
		if step == "execute" {
			w.WriteHeader(http.StatusBadGateway) // unknown
			return
		}
		n := strings.Count(strings.Join(calls[key], " "), "query")
		switch {
		case key == "puzzle":
			_, _ = io.WriteString(w, "cannot_tell")
		case n < 3:
			_, _ = io.WriteString(w, `{"answer": "pending"}`)
		default:
			_, _ = io.WriteString(w, `{"answer": "took_effect"}`)
		}
	}))
	defer downstream.Close()
	booked := filepath.Join(t.TempDir(), "booked")
	s := startServe(t, `
scenes:
  - name: payment.refund
    unknown: ask
    handler: {http: {url: "`+downstream.URL+`/refund"}}
    query: {http: {url: "`+downstream.URL+`/refunded"}}
    callback: {exec: {command: [sh, -c, 'echo "$SPILLWAY_KEY" >>"$BOOKED"; [ "$SPILLWAY_ATTEMPT" != 3 ] || exit 75'], env: {BOOKED: `+booked+`}}}
    query_policy: {kind: FIXED, base: 100ms, max_attempts: 5}
    callback_policy: {kind: FIXED, base: 100ms, max_attempts: 5}
`, "--migrate")
	waitFor(t, "first log line", func() bool { return strings.Contains(s.err.String(), "msg=serving") })
	lost := publishTask(t, "--scene", "payment.refund", "--key", "lost")
	puzzle := publishTask(t, "--scene", "payment.refund", "--key", "puzzle")

	if got := waitState(t, lost, retry.StatusSuccess); got.Attempt != 4 || got.Uncharged != 3 || got.Phase != retry.PhaseCallback {
		t.Errorf("got %+v", got)
	}
	run(t, "explain", fmt.Sprint(lost)).want(t, exitOK, "asked the other side, which said pending", "it had taken effect", "books again", "try of Query 2", "try of Callback 1", "all match")
	if got := waitState(t, puzzle, retry.StatusManualReview); got.Phase != retry.PhaseQuery || !got.Unknown {
		t.Errorf("got %+v", got)
	}
	run(t, "explain", fmt.Sprint(puzzle)).want(t, exitOK, "the other side cannot tell", "tasks retry asks the other side again", "all match")
	run(t, "tasks", "retry", fmt.Sprint(puzzle), "--phase", "done").want(t, exitUsage, "--phase", "execute, query or callback")
	run(t, "tasks", "retry", fmt.Sprint(puzzle), "--phase", "callback", "--by", "ada", "--note", "seen on their statement").want(t, exitOK, "WAIT")
	waitState(t, puzzle, retry.StatusSuccess)
	run(t, "explain", fmt.Sprint(puzzle)).want(t, exitOK, "made due now by ada", "seen on their statement", "all match")

	mu.Lock()
	if got := strings.Join(calls["lost"], " "); got != "execute query query query" {
		t.Errorf("lost: called %s", got)
	}
	if got := strings.Join(calls["puzzle"], " "); got != "execute query" {
		t.Errorf("puzzle: called %s", got)
	}
	mu.Unlock()
	if b, err := os.ReadFile(booked); err != nil || string(b) != "lost\nlost\npuzzle\n" {
		t.Errorf("booked %q, %v", b, err)
	}
	if code := s.stopped(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
