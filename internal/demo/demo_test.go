package demo

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// keyOf finds a key of a kind.
func keyOf(t *testing.T, kind string) string {
	t.Helper()
	for i := range 2000 {
		if key := task(i).Key; kindOf(key) == kind {
			return key
		}
	}
	t.Fatalf("no key is %q", kind)
	return ""
}

// The downstream misbehaves as it says, and the ledger sees it.
func TestDownstream(t *testing.T) {
	d, err := startDownstream()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	}()
	s := scenes()[1] // repeating is not safe
	c := newCaller(d.url())
	defer c.client.CloseIdleConnections()
	for _, k := range []struct {
		kind    string
		want    []retry.Class // call by call
		effects int
	}{
		{kindFine, []retry.Class{retry.ClassNone}, 1},
		{kindHiccup, []retry.Class{retry.ClassTransient, retry.ClassNone}, 1},
		{kind503, []retry.Class{retry.ClassTransient, retry.ClassTransient, retry.ClassTransient, retry.ClassTransient, retry.ClassNone}, 1},
		{kindDown, []retry.Class{retry.ClassTransient, retry.ClassTransient}, 0},
		{kind429, []retry.Class{retry.ClassTransient, retry.ClassTransient, retry.ClassNone}, 1},
		{kindReset, []retry.Class{retry.ClassUnknown, retry.ClassNone}, 1},
		{kind400, []retry.Class{retry.ClassPermanent}, 0},
		{kindSlow, []retry.Class{retry.ClassNone}, 1},
	} {
		key := keyOf(t, k.kind)
		for i, want := range k.want {
			err := c.call(t.Context(), s, key, "run", i, charge{Order: key})
			if got := s.ClassOf(err); got != want {
				t.Errorf("%s, call %d: %q (%v), want %q", k.kind, i+1, got, err, want)
			}
			if after, ok := retry.RetryAfter(err); k.kind == kind429 && err != nil && (!ok || after != 2*time.Second) {
				t.Errorf("%s: Retry-After %v %v", k.kind, after, ok)
			}
		}
		if e := d.ledger[key]; e.effects != k.effects || e.runs["run"] != len(k.want) {
			t.Errorf("%s: ledger %+v", k.kind, e)
		}
	}
}

// A call that is given up is no effect.
func TestDownstreamSlowGivenUp(t *testing.T) {
	d, err := startDownstream()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c := newCaller(d.url())
	key := keyOf(t, kindSlow)
	if err := c.call(ctx, scenes()[0], key, "run", 1, charge{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	c.client.CloseIdleConnections()
	if err := d.stop(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if e := d.ledger[key]; e != nil && e.effects != 0 {
		t.Errorf("ledger %+v", e)
	}
}

// Every broken promise is named.
func TestBroken(t *testing.T) {
	if got := (&Report{}).Broken(); len(got) != 0 {
		t.Errorf("nothing is broken, got %v", got)
	}
	r := &Report{Lost: []string{"a"}, Twice: []string{"b", "c"}, NoEffect: []string{"d"}, Strays: 4}
	got := strings.Join(r.Broken(), "; ")
	for _, want := range []string{"1 tasks were lost", "2 tasks were executed twice", "1 tasks are called a success", "4 messages"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
}
