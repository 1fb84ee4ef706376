package publisher_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

func TestRecord(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{fast(retry.Scene{Name: "repeat", Unknown: retry.UnknownRepeat}), fast(retry.Scene{Name: "review"}),
			fast(retry.Scene{Name: "ask", Unknown: retry.UnknownAsk})}
	})
	transient, unknown, permanent := retry.Transient(errBoom), retry.Unknown(errBoom), retry.Permanent(errBoom)
	for _, c := range []struct {
		name, scene string
		errs        []error
		calls       int
		status      retry.Status
		reason      retry.Reason
	}{
		{"success", "review", []error{nil}, 1, retry.StatusSuccess, ""},
		{"success after a hiccup", "review", []error{transient, nil}, 2, retry.StatusSuccess, ""},
		{"permanent", "review", []error{permanent}, 1, retry.StatusFailed, retry.ReasonFailPermanent},
		{"transient", "review", []error{transient}, 3, retry.StatusWait, ""},
		{"unknown for review", "review", []error{unknown}, 1, retry.StatusManualReview, retry.ReasonManualReview},
		{"unknown where repeating is safe", "repeat", []error{unknown}, 3, retry.StatusWait, ""},
		{"unknown to be asked", "ask", []error{unknown}, 1, retry.StatusWait, ""},
		{"told to wait past the deadline", "review", []error{retry.After(24*time.Hour, transient)}, 1, retry.StatusFailed, retry.ReasonDeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			task := publisher.Task{Scene: c.scene, Key: c.name, Args: 1, Deadline: time.Hour}
			call, calls := failing(c.errs...)
			err := p.Record(t.Context(), task, func(ctx context.Context) error {
				list, lerr := store.List(ctx, persistence.Filter{Key: c.name})
				if lerr != nil || len(list) != 1 || list[0].Status != retry.StatusInit || list[0].ClaimedBy != "test-publisher" || list[0].LeaseUntil == nil {
					t.Errorf("before the call: %+v, %v", list, lerr)
				}
				return call(ctx)
			})
			list, lerr := store.List(t.Context(), persistence.Filter{Key: c.name})
			if lerr != nil || len(list) != 1 {
				t.Fatalf("%d tasks, %v", len(list), lerr)
			}
			got := list[0]
			if *calls != c.calls || got.Status != c.status || got.StopReason != c.reason || got.Attempt != 0 {
				t.Errorf("%d calls, %+v", *calls, got)
			}
			var esc *retry.EscalatedError
			switch remembered := !c.status.Terminal(); {
			case c.status == retry.StatusSuccess:
				if err != nil {
					t.Error(err)
				}
			case !errors.Is(err, errBoom) || errors.As(err, &esc) != remembered || remembered && esc.TaskID != got.ID:
				t.Errorf("got %v", err)
			}
			if want := map[bool]retry.Phase{true: retry.PhaseQuery, false: retry.PhaseExecute}[c.scene == "ask"]; got.Phase != want {
				t.Errorf("phase %s, want %s", got.Phase, want)
			}
			if c.name != "success" { // which its row tells alone
				checkCalls(t, store, got.ID, c.calls)
			}
			if c.status != retry.StatusSuccess {
				events, err := store.Events(t.Context(), got.ID)
				if err != nil || len(events) != 1 {
					t.Fatalf("%d journal rows, %v", len(events), err)
				}
				e := events[0]
				rules, err := store.Policy(t.Context(), c.scene, e.PolicyVersion)
				if err != nil || e.From != retry.StatusInit || e.To != c.status || retry.Decide(rules, *e.Facts) != *e.Decision {
					t.Errorf("journal %+v, %v", e, err)
				}
			}
			// The same again: the key is held, nothing is called.
			err = p.Record(t.Context(), task, call)
			var exists *publisher.ExistsError
			if c.status == retry.StatusSuccess {
				if err != nil {
					t.Errorf("again: %v", err)
				}
			} else if !errors.As(err, &exists) || exists.TaskID != got.ID || exists.Status != c.status || errors.Is(err, retry.ErrEscalated) == c.status.Terminal() {
				t.Errorf("again: %v", err)
			}
			task.Args = 2
			if err = p.Record(t.Context(), task, call); !errors.Is(err, retry.ErrKeyConflict) {
				t.Errorf("other arguments: %v", err)
			}
			if *calls != c.calls {
				t.Errorf("called again")
			}
		})
	}
}

func TestRecordFailsAndNothingIsCalled(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	call := func(context.Context) error { t.Error("called"); return nil }
	checkField(t, p.Record(t.Context(), publisher.Task{Scene: "s", Args: func() {}}, call), "args", "func()")
	checkField(t, p.Record(t.Context(), publisher.Task{Scene: "s", Delay: time.Second}, call), "delay", "calls at once")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Record(over, publisher.Task{Scene: "s"}, call); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := countTasks(t, store); n != 0 {
		t.Errorf("%d tasks", n)
	}
	if err := store.DB().Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Record(t.Context(), publisher.Task{Scene: "s"}, call); !errors.Is(err, retry.ErrNotRecorded) || !strings.Contains(err.Error(), "closed") {
		t.Error(err)
	}
}

func TestRecordRenewsItsLease(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) { c.Lease = time.Second })
	closed := make(chan error, 1)
	err := p.Record(t.Context(), publisher.Task{Scene: "s", Key: "k"}, func(ctx context.Context) error {
		go func() { closed <- p.Close(context.Background()) }()
		testenv.Eventually(t, 20*time.Second, func() bool {
			list, err := store.List(t.Context(), persistence.Filter{Key: "k"})
			return err == nil && len(list) == 1 && list[0].LeaseUntil.Sub(list[0].CreatedAt) > 4*time.Second
		}, "the lease is renewed many times")
		select {
		case err := <-closed:
			t.Errorf("closed while a call runs: %v", err)
		default:
		}
		return ctx.Err()
	})
	if err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A person ends the task while its call runs: the call is told, and its success
// comes too late.
func TestRecordLosesItsClaim(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) { c.Lease = time.Second })
	err := p.Record(t.Context(), publisher.Task{Scene: "s", Key: "k"}, func(ctx context.Context) error {
		list, err := store.List(ctx, persistence.Filter{Key: "k"})
		if err != nil {
			return err
		}
		if _, err := store.Operate(ctx, persistence.Action{Verb: persistence.Cancel, ID: list[0].ID, Actor: "ann"}); err != nil {
			return err
		}
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, retry.ErrLostClaim) {
			t.Errorf("cause %v", cause)
		}
		return nil
	})
	var late *publisher.UnsettledError
	if !errors.As(err, &late) || late.Outcome != nil || !errors.Is(err, retry.ErrLostClaim) || !strings.Contains(err.Error(), "the call succeeded") {
		t.Fatalf("got %v", err)
	}
	if got := get(t, store, late.TaskID); got.Status != retry.StatusCancelled {
		t.Errorf("%+v", got)
	}
}

func TestRecordOfAPanic(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	func() {
		defer func() {
			if recover() != "ouch" {
				t.Error("the panic was swallowed")
			}
		}()
		_ = p.Record(t.Context(), publisher.Task{Scene: "s", Key: "k"}, func(context.Context) error { panic("ouch") })
	}()
	list, err := store.List(t.Context(), persistence.Filter{Key: "k"})
	if err != nil || len(list) != 1 || list[0].Status != retry.StatusManualReview || !list[0].Unknown {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestKilledPublisherChild is no test: it is the process that TestKilledPublisher kills.
func TestKilledPublisherChild(t *testing.T) {
	env := strings.Split(os.Getenv("SPILLWAY_TEST_RECORD_CHILD"), " ")
	if len(env) != 2 {
		t.Skip("run by TestKilledPublisher")
	}
	store := storetest.OpenConfig(t, persistence.Config{Service: env[0], Schema: env[1]})
	p, err := publisher.New(publisher.Config{Service: env[0], Store: store, AMQPURL: nowhere, Logger: quiet(), Lease: time.Second, Scenes: killedScenes()})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range killedScenes() {
		go func() {
			_ = p.Record(context.Background(), publisher.Task{Scene: s.Name, Key: "k"}, func(context.Context) error {
				_, _ = os.Stdout.WriteString("calling\n")
				select {} // until it is killed
			})
		}()
	}
	select {}
}

func killedScenes() []retry.Scene {
	once := retry.Policy{Kind: retry.Fixed, Base: 100 * time.Millisecond, MaxAttempts: 1}
	return []retry.Scene{{Name: "review"}, {Name: "repeat", Unknown: retry.UnknownRepeat, Policy: once}}
}

// A publisher is killed in the middle of its calls. What may be repeated runs once more,
// even with a single attempt; the rest goes to a person, and no consumer touches it.
func TestKilledPublisher(t *testing.T) {
	t.Parallel()
	service, schema := testenv.Service(t), storetest.Schema(t)
	store := storetest.OpenConfig(t, persistence.Config{Service: service, Schema: schema})
	testenv.DeclareTopology(t, service, topology.Classic)
	var runs [2]atomic.Int64
	var handlers []consumer.Handler
	for i, s := range killedScenes() {
		handlers = append(handlers, consumer.Handle(s, func(context.Context, *consumer.Job[[]byte]) error { runs[i].Add(1); return nil }))
	}
	c, err := consumer.New(consumer.Config{
		Service: service, Store: store, AMQPURL: testenv.AMQPURL(t), Kind: topology.Classic, ScanInterval: 200 * time.Millisecond, Logger: quiet(),
	}, handlers...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	child := exec.Command(os.Args[0], "-test.run=^TestKilledPublisherChild$", "-test.timeout=2m")
	child.Env = append(os.Environ(), "SPILLWAY_TEST_RECORD_CHILD="+service+" "+schema)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for calling := 0; calling < 2 && lines.Scan(); {
		if lines.Text() == "calling" {
			calling++
		}
	}
	status := func(scene string) retry.Task {
		list, err := store.List(context.Background(), persistence.Filter{Scenes: []string{scene}})
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %+v, %v", scene, list, err)
		}
		return list[0]
	}
	testenv.Eventually(t, 20*time.Second, func() bool {
		r := status("repeat")
		return r.LeaseUntil != nil && r.LeaseUntil.Sub(r.CreatedAt) > 2500*time.Millisecond
	}, "the calls outlive a lease")
	if a, b := status("review"), status("repeat"); a.Status != retry.StatusInit || b.Status != retry.StatusInit || runs[0].Load()+runs[1].Load() != 0 {
		t.Errorf("beside the calls: %s, %s, %d and %d runs", a.Status, b.Status, runs[0].Load(), runs[1].Load())
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	testenv.Eventually(t, 30*time.Second, func() bool {
		return status("review").Status == retry.StatusManualReview && status("repeat").Status == retry.StatusSuccess
	}, "the reaper finds them")
	if a, b := status("review"), status("repeat"); runs[0].Load() != 0 || runs[1].Load() != 1 || a.Attempt != 0 || b.Attempt != 1 || !a.Unknown || a.Crashes != 1 {
		t.Errorf("%d and %d runs, %+v, %+v", runs[0].Load(), runs[1].Load(), a, b)
	}
}
