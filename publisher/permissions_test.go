package publisher_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// restricted lets the publisher log in as a user who may write to some entities of its service
// and nothing else.
func restricted(t *testing.T, entities string, user *string) func(*publisher.Config) {
	return func(c *publisher.Config) {
		c.AMQPURL = testenv.User(t, c.AMQPURL, `^$`, `^spillway\.v1\.`+c.Service+`\.`+entities+`$`, `^$`)
		u, err := url.Parse(c.AMQPURL)
		if err != nil {
			t.Fatal(err)
		}
		*user = u.User.Username()
	}
}

// The smallest permissions of a publisher, which docs/operations.md gives: wake-ups of Enqueue
// and Do arrive (newFallback sees to it), and the submit queue takes over.
func TestPermissions(t *testing.T) {
	t.Parallel()
	var user string
	f := newFallback(t, restricted(t, "(delay|submit)", &user))
	if st := f.pub.Connection(); !st.Connected || st.Generation != 1 || st.Reconnects != 0 || st.Address != f.broker.Addr() {
		t.Errorf("%+v", st)
	}
	gone(f.postgres)
	if r, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s"}); err != nil || !r.Submitted {
		t.Errorf("Enqueue: %+v, %v", r, err)
	}
	err := f.pub.Do(t.Context(), publisher.Task{Scene: "s"}, func(context.Context) error { return errBoom })
	if !errors.Is(err, retry.ErrEscalated) {
		t.Errorf("Do: %v", err)
	}
	f.take(2)
}

// Without the submit queue the caller is told at once that nothing was recorded, and why.
func TestPermissionMissing(t *testing.T) {
	t.Parallel()
	var user string
	f := newFallback(t, restricted(t, "delay", &user))
	gone(f.postgres)
	_, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s"})
	if !errors.Is(err, retry.ErrNotRecorded) {
		t.Fatal(err)
	}
	for _, says := range []string{f.names.Submit(), user, "permission write"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v: does not name %q", err, says)
		}
	}
	if n := f.depth(f.names.Submit()); n != 0 {
		t.Errorf("%d messages", n)
	}
}
