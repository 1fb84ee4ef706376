package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// fallback is a publisher between two servers that can fail.
type fallback struct {
	t        *testing.T
	pub      *publisher.Publisher
	schema   string
	store    *persistence.Postgres // not through the proxy
	postgres *testenv.Proxy
	broker   *testenv.Proxy
	names    topology.Names
	ch       *amqp.Channel
}

func newFallback(t *testing.T, change func(*publisher.Config)) *fallback {
	t.Helper()
	service, schema := testenv.Service(t), storetest.Schema(t)
	f := &fallback{t: t, schema: schema, store: storetest.OpenConfig(t, persistence.Config{Service: service, Schema: schema})}
	f.names = testenv.DeclareTopology(t, service, topology.Classic).Names()
	var err error
	if f.ch, err = testenv.AMQP(t).Channel(); err != nil {
		t.Fatal(err)
	}
	var dsn, url string
	f.postgres, dsn = testenv.ProxyURL(t, testenv.PostgresDSN(t))
	f.broker, url = testenv.ProxyURL(t, testenv.AMQPURL(t))
	cfg := publisher.Config{
		Service: service, Store: storetest.OpenConfig(t, persistence.Config{DSN: dsn, Service: service, Schema: schema}),
		AMQPURL: url, Logger: quiet(), Name: "test-publisher", RecordTimeout: 4 * time.Second,
		Scenes: []retry.Scene{fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat}), fast(retry.Scene{Name: "review"})},
	}
	if change != nil {
		change(&cfg)
	}
	if f.pub, err = publisher.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.postgres.Thaw()
		f.broker.Thaw()
		if !errors.Is(f.pub.Wake(context.Background()), publisher.ErrClosed) {
			closeWithin(t, f.pub, 10*time.Second)
		}
	})
	// Ids in hand, the rules saved, and the connection made.
	if r, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s"}); err != nil || r.Submitted {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, scene := range []string{"s", "review"} {
		_ = f.pub.Do(t.Context(), publisher.Task{Scene: scene}, func(context.Context) error { return errBoom })
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return f.depth(f.names.Ready()) > 0 }, "a wake-up")
	return f
}

func gone(p *testenv.Proxy) { p.Refuse(); p.Cut() }

func (f *fallback) depth(queue string) int {
	f.t.Helper()
	q, err := f.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return q.Messages
}

// take takes n messages out of the submit queue, which then is empty.
func (f *fallback) take(n int) []submit.Message {
	f.t.Helper()
	var out []submit.Message
	testenv.Eventually(f.t, 10*time.Second, func() bool {
		d, ok, err := f.ch.Get(f.names.Submit(), true)
		if err != nil {
			f.t.Fatal(err)
		}
		if ok {
			m, err := submit.Decode(&d, 1<<20)
			if err != nil || d.DeliveryMode != amqp.Persistent {
				f.t.Errorf("%v, mode %d", err, d.DeliveryMode)
			}
			out = append(out, m)
		}
		return !ok && len(out) >= n
	}, fmt.Sprintf("%d messages", n))
	if len(out) != n {
		f.t.Fatalf("%d messages, want %d", len(out), n)
	}
	return out
}

func TestSubmitWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*testenv.Proxy){"gone": gone, "frozen": (*testenv.Proxy).Freeze} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFallback(t, nil)
			away(f.postgres)
			began := time.Now()
			r, err := f.pub.Enqueue(t.Context(), publisher.Task{
				Scene: "s", Key: "k", Args: map[string]int{"n": 1}, Delay: time.Minute, Deadline: time.Hour, Workflow: "w", Headers: map[string]string{"a": "b"},
			})
			if err != nil || !r.Submitted || r.Created || r.Status != retry.StatusWait || r.ID == 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			if took := time.Since(began); took > 3500*time.Millisecond {
				t.Errorf("took %v", took)
			}
			m := f.take(1)[0]
			if m.MessageID == "" || m.ID != r.ID || m.Scene != "s" || m.Key != "k" || string(m.Args) != `{"n":1}` || m.ContentType != "application/json" ||
				m.Delay < time.Minute || m.Delay > 64*time.Second || m.Deadline != time.Hour || m.Workflow != "w" || m.Headers["a"] != "b" ||
				m.By != "test-publisher" || m.Attempt != nil || m.Sent.Before(began.Truncate(time.Millisecond)) || m.Sent.After(began.Add(time.Second)) {
				t.Errorf("%+v", m)
			}
			if name == "frozen" {
				prompt(t, "the next one", func() {
					if r, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s"}); err != nil || !r.Submitted || r.ID != 0 {
						t.Errorf("%+v, %v", r, err)
					}
				})
				f.take(1)
			}
			var many []publisher.Task
			for i := range 600 { // more than the ids in hand
				many = append(many, publisher.Task{Scene: "s", Key: fmt.Sprint(i)})
			}
			rs, err := f.pub.EnqueueMany(t.Context(), many)
			if err != nil || len(rs) != 600 || !rs[599].Submitted {
				t.Fatalf("%d, %v", len(rs), err)
			}
			seen := map[string]bool{}
			for _, m := range f.take(600) {
				seen[m.Key] = true
				seen[m.MessageID] = true
			}
			if len(seen) != 1200 {
				t.Errorf("%d keys and message ids", len(seen))
			}
			var esc *retry.EscalatedError
			for scene, status := range map[string]retry.Status{"s": retry.StatusWait, "review": retry.StatusManualReview} {
				err = f.pub.Do(t.Context(), publisher.Task{Scene: scene, Deadline: time.Hour}, func(context.Context) error { return retry.After(time.Minute, errBoom) })
				if !errors.As(err, &esc) || esc.Status != status || !errors.Is(err, errBoom) || !errors.Is(err, retry.ErrEscalated) {
					t.Fatalf("%s: %v", scene, err)
				}
				if esc.TaskID == 0 && !strings.Contains(err.Error(), "through the submit queue") {
					t.Error(err)
				}
				m := f.take(1)[0]
				if a := m.Attempt; a == nil || a.Error != "boom" || a.RetryAfter != time.Minute || a.Calls != 1 || a.Elapsed < 0 || m.Deadline != time.Hour || m.Delay != 0 || m.ID != esc.TaskID {
					t.Errorf("%s: %+v %+v", scene, m, m.Attempt)
				}
			}
			if name == "gone" {
				f.postgres.Accept()
			}
			f.postgres.Thaw()
			testenv.Eventually(t, 20*time.Second, func() bool {
				r, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s"})
				return err == nil && !r.Submitted && r.Created
			}, "tasks go to Postgres again")
		})
	}
}

// The row is there, and nobody heard of it: the message has its id.
func TestSubmitAfterALostAnswer(t *testing.T) {
	t.Parallel()
	f := newFallback(t, nil)
	f.postgres.FreezeReplies()
	r, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s", Args: 1})
	if err != nil || !r.Submitted || r.ID == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if m := f.take(1)[0]; m.ID != r.ID || m.MessageID == "" {
		t.Errorf("%+v", m)
	}
	if task := get(t, f.store, r.ID); string(task.Args) != "1" {
		t.Errorf("%+v", task)
	}
}

// What a caller's context leaves is shared.
func TestSubmitWithLittleTime(t *testing.T) {
	t.Parallel()
	f := newFallback(t, func(c *publisher.Config) { c.RecordTimeout = time.Minute })
	f.postgres.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if r, err := f.pub.Enqueue(ctx, publisher.Task{Scene: "s"}); err != nil || !r.Submitted || ctx.Err() != nil {
		t.Errorf("%+v, %v", r, err)
	}
	// One that is cancelled is the caller's own end.
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := f.pub.Enqueue(ctx, publisher.Task{Scene: "s"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	f.take(1)
}

func TestBothServersAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*testenv.Proxy){"gone": gone, "frozen": (*testenv.Proxy).Freeze} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFallback(t, nil)
			away(f.postgres)
			away(f.broker)
			for what, call := range map[string]func() error{
				"do": func() error {
					return f.pub.Do(t.Context(), publisher.Task{Scene: "s"}, func(context.Context) error { return errBoom })
				},
				"enqueue":      func() error { _, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s"}); return err },
				"enqueue many": func() error { _, err := f.pub.EnqueueMany(t.Context(), make2("s")); return err },
			} {
				began := time.Now()
				err := call()
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("%s took %v", what, took)
				}
				if !errors.Is(err, retry.ErrNotRecorded) || errors.Is(err, retry.ErrEscalated) || errors.Is(err, errBoom) != (what == "do") ||
					!strings.Contains(err.Error(), "postgres: ") || !strings.Contains(err.Error(), "submit queue: ") {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

func make2(scene string) []publisher.Task {
	return []publisher.Task{{Scene: scene}, {Scene: scene}}
}

// A queue would hide what is a matter of deployment, or wrong.
func TestNotSubmitted(t *testing.T) {
	t.Parallel()
	f := newFallback(t, nil)
	if _, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 2}); !errors.Is(err, retry.ErrKeyConflict) {
		t.Errorf("conflict: %v", err)
	}
	if _, err := f.store.DB().ExecContext(t.Context(), `ALTER TABLE `+f.schema+`.task RENAME TO other`); err != nil {
		t.Fatal(err)
	}
	if r, err := f.pub.Enqueue(t.Context(), publisher.Task{Scene: "s"}); err == nil || r.Submitted || errors.Is(err, retry.ErrNotRecorded) || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("without the table: %+v, %v", r, err)
	}
	err := f.pub.Do(t.Context(), publisher.Task{Scene: "s"}, func(context.Context) error { return errBoom })
	if !errors.Is(err, retry.ErrNotRecorded) || !errors.Is(err, errBoom) {
		t.Errorf("without the table: %v", err)
	}
	f.take(0)
}

func TestCloseWhileSubmitting(t *testing.T) {
	t.Parallel()
	f := newFallback(t, func(c *publisher.Config) { c.RecordTimeout = time.Minute })
	gone(f.postgres)
	f.broker.Freeze()
	errs, called := make(chan error, 5), make(chan struct{}, 5)
	for range cap(errs) {
		go func() {
			errs <- f.pub.Do(context.Background(), publisher.Task{Scene: "review", Args: strings.Repeat("x", 1<<19)}, func(context.Context) error {
				called <- struct{}{}
				return errBoom
			})
		}()
	}
	for range cap(called) {
		testenv.Receive(t, 10*time.Second, "a call", called)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := f.pub.Close(ctx); err == nil {
		t.Error("close says that all went well")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("close took %v", took)
	}
	for range cap(errs) {
		if err := testenv.Receive(t, 10*time.Second, "the end of a call", errs); !errors.Is(err, retry.ErrNotRecorded) {
			t.Errorf("got %v", err)
		}
	}
}
