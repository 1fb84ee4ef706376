package publisher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// A Do within an attempt calls once, and says what the call did: three layers with three tries each make
// three calls.
func TestDoWithinDo(t *testing.T) {
	t.Parallel()
	scene := fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat})
	p, store := newPublisher(t, func(c *publisher.Config) { c.Scenes = []retry.Scene{scene} })
	for name, outer := range map[string]func(context.Context, publisher.Task, func(context.Context) error) error{"Do": p.Do, "Record": p.Record} {
		call, calls := failing(errBoom)
		var inner []error
		var seen []retry.Attempt
		task := func(key string) publisher.Task {
			return publisher.Task{Scene: "s", Key: name + key, Deadline: time.Hour}
		}
		err := outer(t.Context(), task("outer"), func(ctx context.Context) error {
			a, _ := retry.AttemptOf(ctx)
			seen = append(seen, a)
			err := p.Do(ctx, task("middle"), func(ctx context.Context) error {
				return p.Do(ctx, task("inner"), call)
			})
			inner = append(inner, err)
			return err
		})
		if !errors.Is(err, retry.ErrEscalated) || !errors.Is(err, errBoom) || *calls != 3 {
			t.Errorf("%s: %v after %d calls, want it escalated after 3", name, err, *calls)
		}
		for i, err := range inner {
			if err != errBoom { //nolint:errorlint // as it is, not wrapped
				t.Errorf("%s: an inner Do said %v", name, err)
			}
			a := seen[i]
			if left := time.Until(a.Deadline); a.Key != name+"outer" || a.Scene != "s" || a.Number != 0 || (a.Task != 0) != (name == "Record") || left > time.Hour || left < 50*time.Minute {
				t.Errorf("%s: within %+v", name, a)
			}
		}
	}
	if n := countTasks(t, store); n != 2 {
		t.Errorf("%d tasks, want those of the two outermost", n)
	}
}

// What is no retry of the attempt's is new work.
func TestNewWorkWithinAnAttempt(t *testing.T) {
	t.Parallel()
	scene := fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat})
	p, store := newPublisher(t, func(c *publisher.Config) { c.Scenes = []retry.Scene{scene} })
	ctx := retry.WithAttempt(t.Context(), retry.Attempt{Number: 1})
	if r, err := p.Enqueue(ctx, publisher.Task{Scene: "s", Key: "enqueued"}); err != nil || !r.Created {
		t.Errorf("%+v, %v", r, err)
	}
	call, calls := failing(errBoom)
	if err := p.Record(ctx, publisher.Task{Scene: "s", Key: "recorded"}, call); !errors.Is(err, retry.ErrEscalated) || *calls != 3 {
		t.Errorf("Record: %v after %d calls", err, *calls)
	}
	// The attempt is made again: neither is.
	if r, err := p.Enqueue(ctx, publisher.Task{Scene: "s", Key: "enqueued"}); err != nil || r.Created {
		t.Errorf("again: %+v, %v", r, err)
	}
	var exists *publisher.ExistsError
	if err := p.Record(ctx, publisher.Task{Scene: "s", Key: "recorded"}, call); !errors.As(err, &exists) || *calls != 3 {
		t.Errorf("Record again: %v after %d calls", err, *calls)
	}
	call, calls = failing(errBoom)
	if err := p.Do(retry.WithoutAttempt(ctx), publisher.Task{Scene: "s", Key: "apart"}, call); !errors.Is(err, retry.ErrEscalated) || *calls != 3 {
		t.Errorf("Do without the attempt: %v after %d calls", err, *calls)
	}
	if n := countTasks(t, store); n != 3 {
		t.Errorf("%d tasks", n)
	}
}

func TestDoWithinAnAttemptThatIsOver(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	call, calls := failing(nil)
	ctx := retry.WithAttempt(t.Context(), retry.Attempt{Number: 1, Deadline: time.Now().Add(-time.Millisecond)})
	err := p.Do(ctx, publisher.Task{Scene: "s"}, call)
	if !errors.Is(err, retry.ErrDeadline) || retry.MarkedClass(err) != retry.ClassTransient || *calls != 0 {
		t.Errorf("%v, class %s, after %d calls", err, retry.MarkedClass(err), *calls)
	}
	// What is wrong is still said, and nothing is called.
	if err := p.Do(retry.WithAttempt(t.Context(), retry.Attempt{}), publisher.Task{Scene: "No"}, call); !errors.Is(err, retry.ErrInvalid) || *calls != 0 {
		t.Errorf("%v after %d calls", err, *calls)
	}
	if n := countTasks(t, store); n != 0 {
		t.Errorf("%d tasks", n)
	}
}
