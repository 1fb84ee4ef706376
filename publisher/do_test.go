package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

var errBoom = errors.New("boom")

// fast has a local tier without pauses.
func fast(s retry.Scene) retry.Scene {
	s.Local = retry.Local{Retries: 2, Pause: -1}
	return s
}

// failing returns a call that returns errs in turn, the last one for ever, and
// its count of calls.
func failing(errs ...error) (func(context.Context) error, *int) {
	n := new(int)
	return func(context.Context) error {
		*n++
		return errs[min(*n, len(errs))-1]
	}, n
}

func TestDo(t *testing.T) {
	t.Parallel()
	scenes := []retry.Scene{
		fast(retry.Scene{Name: "repeat", Unknown: retry.UnknownRepeat}),
		fast(retry.Scene{Name: "review"}),
		fast(retry.Scene{Name: "ask", Unknown: retry.UnknownAsk}),
		{Name: "no-local", Unknown: retry.UnknownRepeat, Local: retry.Local{Retries: -1}},
		{Name: "classifies", Local: retry.Local{Pause: -1}, Classify: func(error) retry.Class { return retry.ClassPermanent }},
	}
	p, store := newPublisher(t, func(c *publisher.Config) { c.Scenes = scenes })
	rules := map[string]retry.Rules{}
	for _, s := range scenes {
		rules[s.Name] = s.Rules(topology.Grid())
	}
	transient, unknown, permanent := retry.Transient(errBoom), retry.Unknown(errBoom), retry.Permanent(errBoom)
	cases := []struct {
		name   string
		scene  string
		errs   []error
		calls  int
		status retry.Status // empty: nothing is stored
		class  retry.Class
		ok     bool
	}{
		{"success", "review", []error{nil}, 1, "", "", true},
		{"success after a hiccup", "review", []error{transient, nil}, 2, "", "", true},
		{"success at the last try", "repeat", []error{errBoom, errBoom, nil}, 3, "", "", true},
		{"permanent at once", "review", []error{permanent}, 1, "", "", false},
		{"permanent later", "review", []error{transient, permanent}, 2, "", "", false},
		{"permanent by the classifier", "classifies", []error{errBoom}, 1, "", "", false},
		{"transient", "review", []error{transient}, 3, retry.StatusWait, retry.ClassTransient, false},
		{"unmarked where repeating is safe", "repeat", []error{errBoom}, 3, retry.StatusWait, retry.ClassTransient, false},
		{"unknown where repeating is safe", "repeat", []error{unknown}, 3, retry.StatusWait, retry.ClassUnknown, false},
		{"unmarked for review", "review", []error{errBoom}, 1, retry.StatusManualReview, retry.ClassUnknown, false},
		{"unknown after a hiccup", "review", []error{transient, unknown}, 2, retry.StatusManualReview, retry.ClassUnknown, false},
		{"unknown to be asked", "ask", []error{unknown}, 1, retry.StatusWait, retry.ClassUnknown, false},
		{"told to wait longer", "repeat", []error{retry.After(time.Minute, errBoom)}, 1, retry.StatusWait, retry.ClassTransient, false},
		{"told to wait no longer", "repeat", []error{retry.After(0, errBoom)}, 3, retry.StatusWait, retry.ClassTransient, false},
		{"no local tier", "no-local", []error{errBoom}, 1, retry.StatusWait, retry.ClassTransient, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := countTasks(t, store)
			call, calls := failing(c.errs...)
			last := c.errs[len(c.errs)-1]
			err := p.Do(t.Context(), publisher.Task{Scene: c.scene, Key: c.name, Args: map[string]int{"n": 1}}, call)
			if *calls != c.calls {
				t.Errorf("called %d times, want %d", *calls, c.calls)
			}
			if c.status == "" {
				if c.ok != (err == nil) || err != last {
					t.Errorf("got %v, want %v unchanged", err, last)
				}
				if n := countTasks(t, store); n != before {
					t.Errorf("%d tasks stored", n-before)
				}
				return
			}
			var esc *retry.EscalatedError
			if !errors.As(err, &esc) || !errors.Is(err, retry.ErrEscalated) || !errors.Is(err, errBoom) {
				t.Fatalf("got %v", err)
			}
			task := get(t, store, esc.TaskID)
			if esc.Status != c.status {
				t.Errorf("the error says %s, want %s", esc.Status, c.status)
			}
			if task.Status != c.status || task.LastClass != c.class || task.LastError != "boom" || task.Attempt != 0 ||
				task.Key != c.name || string(task.Args) != `{"n":1}` || task.Unknown != (c.class == retry.ClassUnknown) {
				t.Errorf("stored %+v", task)
			}
			checkDecision(t, store, task, rules[c.scene], last)
			checkCalls(t, store, task.ID, c.calls)
			if want := map[bool]retry.Phase{true: retry.PhaseQuery, false: retry.PhaseExecute}[c.scene == "ask"]; task.Phase != want {
				t.Errorf("phase %s, want %s", task.Phase, want)
			}
		})
	}
}

// checkCalls wants the journal to tell of every call of the local tier.
func checkCalls(t *testing.T, store *persistence.Postgres, id int64, calls int) {
	t.Helper()
	events, err := store.Events(t.Context(), id)
	if err != nil || len(events) != 1 {
		t.Fatalf("%d journal rows, %v", len(events), err)
	}
	e := events[0]
	if e.Facts != nil && e.Facts.Calls != calls {
		t.Errorf("the facts tell of %d calls, want %d", e.Facts.Calls, calls)
	}
	for i := 1; i < calls; i++ {
		if want := fmt.Sprintf("call %d ended after ", i); !strings.Contains(e.Note, want) {
			t.Errorf("%q is missing in the note %q", want, e.Note)
		}
	}
	if calls > 1 && !strings.Contains(e.Note, "boom") || calls == 1 && e.Note != "" {
		t.Errorf("note %q", e.Note)
	}
}

// checkDecision checks the journal of the inline run, and that what it says can
// be recomputed.
func checkDecision(t *testing.T, store *persistence.Postgres, task retry.Task, rules retry.Rules, cause error) {
	t.Helper()
	events, err := store.Events(t.Context(), task.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 1 {
		t.Fatalf("%d journal rows", len(events))
	}
	e := events[0]
	if e.Attempt != 0 || e.To != task.Status || e.Class != task.LastClass || e.Error != "boom" || e.Actor != "test-publisher" || e.Facts == nil || e.Decision == nil {
		t.Fatalf("journal says %+v", e)
	}
	saved, err := store.Policy(t.Context(), task.Scene, e.PolicyVersion)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(saved, rules) {
		t.Errorf("saved rules %+v, want %+v", saved, rules)
	}
	if again := retry.Decide(saved, *e.Facts); again != *e.Decision || again.Reason != e.Reason {
		t.Errorf("decided %+v, recorded %+v as %s", again, *e.Decision, e.Reason)
	}
	after, _ := retry.RetryAfter(cause)
	if e.Facts.TaskID != task.ID || e.Facts.RetryAfter != after || e.Facts.Deadline != rules.Policy.Deadline || e.Facts.Elapsed <= 0 {
		t.Errorf("facts %+v", *e.Facts)
	}
	if wait := task.NextAt.Sub(task.CreatedAt); wait != e.Decision.Delay || wait < after {
		t.Errorf("waits %v, decided %v, told %v", wait, e.Decision.Delay, after)
	}
	// The row's deadline is what the local tier left over. Stored in microseconds.
	left := e.Facts.Deadline - e.Facts.Elapsed
	if got := task.DeadlineAt.Sub(task.CreatedAt); (got - left).Abs() > time.Microsecond {
		t.Errorf("deadline after %v, want %v", got, left)
	}
	if (task.StopReason == "") != (task.Status == retry.StatusWait) {
		t.Errorf("stop reason %q", task.StopReason)
	}
}

func TestDoPauses(t *testing.T) {
	t.Parallel()
	p, _ := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{{Name: "s", Unknown: retry.UnknownRepeat, Local: retry.Local{Retries: 2, Pause: 30 * time.Millisecond}}}
	})
	var at []time.Time
	err := p.Do(t.Context(), publisher.Task{Scene: "s"}, func(context.Context) error {
		if at = append(at, time.Now()); len(at) == 3 {
			return nil
		}
		return errBoom
	})
	if err != nil || len(at) != 3 {
		t.Fatalf("%v after %d calls", err, len(at))
	}
	for i := range 2 {
		if d := at[i+1].Sub(at[i]); d < 30*time.Millisecond {
			t.Errorf("pause %d took %v", i, d)
		}
	}
}

func TestDoRecordsAfterTheContextIsOver(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{{Name: "s", Unknown: retry.UnknownRepeat, Local: retry.Local{Pause: time.Hour}}}
	})
	t.Run("in the call", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := p.Do(ctx, publisher.Task{Scene: "s"}, func(ctx context.Context) error {
			cancel()
			return ctx.Err()
		})
		checkEscalated(t, store, err, context.Canceled)
	})
	t.Run("in the pause", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err := p.Do(ctx, publisher.Task{Scene: "s"}, func(context.Context) error { return errBoom })
		checkEscalated(t, store, err, errBoom)
	})
	t.Run("before the call", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		call, calls := failing(errBoom)
		if err := p.Do(ctx, publisher.Task{Scene: "s"}, call); err != context.Canceled || *calls != 0 {
			t.Errorf("got %v after %d calls", err, *calls)
		}
	})
}

func checkEscalated(t *testing.T, store *persistence.Postgres, err, cause error) {
	t.Helper()
	var esc *retry.EscalatedError
	if !errors.As(err, &esc) || !errors.Is(err, cause) {
		t.Fatalf("got %v", err)
	}
	if task := get(t, store, esc.TaskID); task.Status != retry.StatusWait {
		t.Errorf("stored %+v", task)
	}
}

func TestDoKeys(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat})}
	})
	held, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 1})
	if err != nil {
		t.Fatal(err)
	}
	call, _ := failing(errBoom)
	t.Run("equal", func(t *testing.T) {
		err := p.Do(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 1}, call)
		var esc *retry.EscalatedError
		if !errors.As(err, &esc) || esc.TaskID != held.ID {
			t.Errorf("got %v, want task %d", err, held.ID)
		}
	})
	t.Run("conflict", func(t *testing.T) {
		err := p.Do(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 2}, call)
		var ce *publisher.ConflictError
		if !errors.Is(err, retry.ErrNotRecorded) || !errors.Is(err, errBoom) || !errors.Is(err, retry.ErrKeyConflict) || !errors.As(err, &ce) || ce.Holder != held.ID {
			t.Errorf("got %v", err)
		}
		if errors.Is(err, retry.ErrEscalated) {
			t.Errorf("%v counts as escalated", err)
		}
	})
	if n := countTasks(t, store); n != 1 {
		t.Errorf("%d tasks", n)
	}
}

func TestDoBadInput(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat})}
		c.MaxPayload = 10
	})
	for name, task := range map[string]publisher.Task{
		"scene":    {Scene: "other"},
		"key":      {Scene: "s", Key: "\n"},
		"delay":    {Scene: "s", Delay: time.Second},
		"deadline": {Scene: "s", Deadline: -1},
		"workflow": {Scene: "s", Workflow: "\n"},
		"headers":  {Scene: "s", Headers: map[string]string{"\n": ""}},
	} {
		call, calls := failing(errBoom)
		err := p.Do(t.Context(), task, call)
		checkField(t, err, name, "")
		if *calls != 0 || errors.Is(err, retry.ErrNotRecorded) {
			t.Errorf("%s: called %d times, %v", name, *calls, err)
		}
	}
	// Arguments are encoded only where they are stored.
	call, calls := failing(errBoom)
	err := p.Do(t.Context(), publisher.Task{Scene: "s", Args: "too long for this"}, call)
	checkField(t, err, "args", "at most 10 bytes")
	if *calls != 3 || !errors.Is(err, retry.ErrNotRecorded) || !errors.Is(err, errBoom) {
		t.Errorf("called %d times, %v", *calls, err)
	}
	if n := countTasks(t, store); n != 0 {
		t.Errorf("%d tasks", n)
	}
}

func TestDoDeadline(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat}), fast(retry.Scene{Name: "review"})}
	})
	// No attempt fits: it is the caller's again.
	err := p.Do(t.Context(), publisher.Task{Scene: "s", Deadline: time.Minute}, func(context.Context) error {
		return retry.After(time.Hour, errBoom)
	})
	if !errors.Is(err, retry.ErrNotRecorded) || !errors.Is(err, errBoom) || !strings.Contains(err.Error(), "deadline_exceeded") {
		t.Errorf("got %v", err)
	}
	if n := countTasks(t, store); n != 0 {
		t.Errorf("%d tasks", n)
	}
	// One for a person is stored even when its time is over.
	err = p.Do(t.Context(), publisher.Task{Scene: "review", Deadline: 1}, func(context.Context) error { return errBoom })
	var esc *retry.EscalatedError
	if !errors.As(err, &esc) || get(t, store, esc.TaskID).Status != retry.StatusManualReview {
		t.Errorf("got %v", err)
	}
}

func TestDoWithoutPostgres(t *testing.T) {
	t.Parallel()
	store, err := persistence.Open(persistence.Config{DSN: "postgres://a:b@127.0.0.1:1/x?sslmode=disable", Service: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	p, err := publisher.New(publisher.Config{
		Service: "orders", Store: store, AMQPURL: nowhere, Logger: quiet(),
		Scenes: []retry.Scene{fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat})},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer closeWithin(t, p, 10*time.Second)
	err = p.Do(t.Context(), publisher.Task{Scene: "s"}, func(context.Context) error { return errBoom })
	if !errors.Is(err, retry.ErrNotRecorded) || !errors.Is(err, errBoom) || errors.Is(err, retry.ErrEscalated) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
	if _, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s"}); err == nil {
		t.Error("enqueued without a database")
	}
}

// stuck is a store that answers only when its context ends.
type stuck struct{ persistence.Store }

func (stuck) SavePolicy(ctx context.Context, _ string, _ retry.Rules) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func TestDoRecordingIsBounded(t *testing.T) {
	t.Parallel()
	p, _ := newPublisher(t, func(c *publisher.Config) {
		c.Store, c.RecordTimeout = stuck{c.Store}, 50*time.Millisecond
		c.Scenes = []retry.Scene{fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat})}
	})
	err := p.Do(t.Context(), publisher.Task{Scene: "s"}, func(context.Context) error { return errBoom })
	if !errors.Is(err, retry.ErrNotRecorded) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestDoPanicGoesThrough(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	func() {
		defer func() {
			if r := recover(); r != "ouch" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = p.Do(t.Context(), publisher.Task{Scene: "s"}, func(context.Context) error { panic("ouch") })
	}()
	if n := countTasks(t, store); n != 0 {
		t.Errorf("%d tasks", n)
	}
	closeWithin(t, p, 5*time.Second) // does not wait for the call that panicked
}

func TestCloseCutsTheLocalTierShort(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{{Name: "s", Unknown: retry.UnknownRepeat, Local: retry.Local{Pause: time.Hour}}}
	})
	called, result := make(chan struct{}), make(chan error, 1)
	go func() {
		result <- p.Do(context.Background(), publisher.Task{Scene: "s"}, func(context.Context) error {
			close(called)
			return errBoom
		})
	}()
	<-called
	closeWithin(t, p, 10*time.Second)
	checkEscalated(t, store, <-result, errBoom)
}
