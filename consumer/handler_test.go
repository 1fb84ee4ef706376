package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// typedNil is an error that cannot be looked at.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

func blowUp() { panic("oh no") }

func TestHandlersThatGoWrong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := strings.Repeat("x", 1<<20)
	var undecoded atomic.Int32
	odd := fast("odd", "")
	odd.Classify = func(err error) retry.Class { panic("in the classifier") }
	slow := fast("slow", "")
	slow.Timeout = 50 * time.Millisecond
	w.start(w.config(), consumer.Handle(fast("bad", ""), func(_ context.Context, j *consumer.Job[order]) error {
		switch {
		case j.Args.N == 1:
			blowUp()
		case j.Args.N == 2:
			runtime.Goexit()
		case j.Args.N == 3 && j.Attempt == 1:
			return retry.Transient(errors.New(long))
		case j.Args.N == 4 && j.Attempt == 1:
			return retry.Transient(errors.New("zero \x00 and \xff"))
		case j.Args.N == 5:
			var err *typedNil
			return err
		case j.Args.N == 6:
			panic((*typedNil)(nil))
		}
		return nil
	}), consumer.Handle(odd, func(context.Context, *consumer.Job[order]) error {
		return errors.New("unmarked")
	}), consumer.Handle(slow, func(ctx context.Context, _ *consumer.Job[order]) error {
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return retry.Permanent(context.Cause(ctx))
		}
		return ctx.Err()
	}), consumer.Handle(fast("numbers", ""), func(context.Context, *consumer.Job[int]) error {
		undecoded.Add(1)
		return nil
	}), consumer.Handle(fast("raw", ""), func(_ context.Context, j *consumer.Job[json.RawMessage]) error {
		return retry.Permanent(errors.New("got " + string(j.Args)))
	}), consumer.Handle(fast("bytes", ""), func(_ context.Context, j *consumer.Job[[]byte]) error {
		return retry.Permanent(errors.New("got " + string(j.Args) + " of " + j.IdempotencyKey()))
	}))
	for _, c := range []struct {
		scene  string
		n      int
		status retry.Status
		reason retry.Reason
		texts  []string // of the stored error
	}{
		{"bad", 1, retry.StatusManualReview, retry.ReasonManualReview, []string{"panic: oh no", "consumer_test.blowUp", "handler_test.go:"}},
		{"bad", 2, retry.StatusManualReview, retry.ReasonManualReview, []string{"Goexit"}},
		{"bad", 3, retry.StatusSuccess, "", []string{"xxx", "[cut, "}},
		{"bad", 4, retry.StatusSuccess, "", []string{"zero  and \uFFFD"}},
		{"bad", 5, retry.StatusManualReview, retry.ReasonManualReview, []string{"panic: ", "*consumer_test.typedNil"}},
		{"bad", 6, retry.StatusManualReview, retry.ReasonManualReview, []string{"panic: "}},
		{"odd", 1, retry.StatusManualReview, retry.ReasonManualReview, []string{"panic: in the classifier"}},
		{"slow", 1, retry.StatusManualReview, retry.ReasonManualReview, []string{"scene timeout of 50ms"}},
		{"numbers", 1, retry.StatusFailed, retry.ReasonFailPermanent, []string{"decode arguments of scene numbers"}},
		{"raw", 1, retry.StatusFailed, retry.ReasonFailPermanent, []string{`got {"N":1}`}},
		{"bytes", 1, retry.StatusFailed, retry.ReasonFailPermanent, []string{`got {"N":1} of ` + w.service + "/bytes/"}},
	} {
		got := w.await(w.enqueue(publisher.Task{Scene: c.scene, Args: order{c.n}})[0].ID, c.status)
		if got.StopReason != c.reason {
			t.Errorf("%s %d: stopped as %q, want %q", c.scene, c.n, got.StopReason, c.reason)
		}
		for _, text := range c.texts {
			if !strings.Contains(got.LastError, text) {
				t.Errorf("%s %d: error %.200q lacks %q", c.scene, c.n, got.LastError, text)
			}
		}
		if len(got.LastError) > persistence.MaxErrorLen+100 {
			t.Errorf("%s %d: error of %d bytes", c.scene, c.n, len(got.LastError))
		}
	}
	if undecoded.Load() != 0 {
		t.Error("a handler ran without its arguments")
	}
}
