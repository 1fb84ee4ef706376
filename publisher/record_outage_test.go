package publisher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/reaper"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// recording is a publisher whose way to Postgres can fail, and a store that has another way.
type recording struct {
	*publisher.Publisher
	t      *testing.T
	proxy  *testenv.Proxy
	store  *persistence.Postgres
	reaper *reaper.Reaper
}

func newRecording(t *testing.T, change func(*publisher.Config)) *recording {
	t.Helper()
	service, schema := testenv.Service(t), storetest.Schema(t)
	proxy, dsn := testenv.ProxyURL(t, testenv.PostgresDSN(t))
	r := &recording{t: t, proxy: proxy, store: storetest.OpenConfig(t, persistence.Config{Service: service, Schema: schema})}
	r.Publisher, _ = newPublisher(t, func(c *publisher.Config) {
		c.Service, c.Store = service, storetest.OpenConfig(t, persistence.Config{DSN: dsn, Service: service, Schema: schema})
		change(c)
	})
	var err error
	r.reaper, err = reaper.New(reaper.Config{
		Store: r.store, Scenes: []retry.Scene{{Name: "s"}}, Grid: topology.Grid(), Name: "r", Logger: quiet(),
		Publish: func(_ context.Context, w []persistence.Wake) ([]bool, error) { return make([]bool, len(w)), nil },
		Depth:   func(context.Context) (int, error) { return 0, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	// The first record needs what the later ones have in hand: ids and the policy's version.
	if err := r.Record(t.Context(), publisher.Task{Scene: "s"}, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return r
}

// task is the one of the key.
func (r *recording) task() (retry.Task, bool) {
	r.t.Helper()
	list, err := r.store.List(r.t.Context(), persistence.Filter{Key: "k"})
	if err != nil || len(list) > 1 {
		r.t.Fatalf("%+v, %v", list, err)
	}
	return append(list, retry.Task{})[0], len(list) == 1
}

// expires waits until the lease is over and a scan has found the task.
func (r *recording) expires() {
	r.t.Helper()
	testenv.Eventually(r.t, 20*time.Second, func() bool {
		s, leads := r.reaper.Scan(r.t.Context())
		if !leads || s.Err != nil {
			r.t.Fatalf("scan: %+v", s)
		}
		return s.Expired == 1
	}, "the lease ends")
	got, _ := r.task()
	if got.Status != retry.StatusManualReview || !got.Unknown || got.Crashes != 1 || got.Attempt != 0 {
		r.t.Errorf("%+v", got)
	}
}

// Trap: a record that was written, but whose answer was lost, is called anyway or is forgotten.
func TestRecordWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	r := newRecording(t, func(c *publisher.Config) { c.Lease, c.RecordTimeout = time.Second, 500*time.Millisecond })
	r.proxy.FreezeReplies()
	err := r.Record(t.Context(), publisher.Task{Scene: "s", Key: "k"}, func(context.Context) error { t.Error("called"); return nil })
	if !errors.Is(err, retry.ErrNotRecorded) {
		t.Errorf("got %v", err)
	}
	r.proxy.Thaw()
	var got retry.Task
	testenv.Eventually(t, 10*time.Second, func() bool { var ok bool; got, ok = r.task(); return ok }, "the row is there")
	if got.Status != retry.StatusInit {
		t.Errorf("%+v", got)
	}
	// Nobody renews it, and what became of the call is unknown to all but the caller.
	r.expires()
}

// Trap: a call succeeds while Postgres is away, and its result is given up at the first refusal.
func TestRecordWhosePostgresComesBackInTime(t *testing.T) {
	t.Parallel()
	r := newRecording(t, func(c *publisher.Config) { c.Lease, c.RecordTimeout = time.Minute, 30*time.Second })
	back := make(chan struct{})
	err := r.Record(t.Context(), publisher.Task{Scene: "s", Key: "k"}, func(context.Context) error {
		r.proxy.Refuse()
		r.proxy.Cut()
		// The length of the outage: a few tries of the publisher's fail meanwhile.
		time.AfterFunc(500*time.Millisecond, func() { defer close(back); r.proxy.Accept() })
		return nil
	})
	testenv.Closed(t, 20*time.Second, "the outage ends", back)
	if err != nil {
		t.Errorf("got %v", err)
	}
	if got, _ := r.task(); got.Status != retry.StatusSuccess || got.Crashes != 0 {
		t.Errorf("%+v", got)
	}
}

// Trap: a call succeeds, its result cannot be written, and the caller is told that all is well or that nothing was done.
func TestRecordWhosePostgresStaysAway(t *testing.T) {
	t.Parallel()
	r := newRecording(t, func(c *publisher.Config) { c.Lease, c.RecordTimeout = time.Second, 500*time.Millisecond })
	err := r.Record(t.Context(), publisher.Task{Scene: "s", Key: "k"}, func(context.Context) error {
		r.proxy.Refuse()
		r.proxy.Cut()
		return nil
	})
	var unsettled *publisher.UnsettledError
	if !errors.As(err, &unsettled) || unsettled.Outcome != nil || errors.Is(err, retry.ErrNotRecorded) {
		t.Fatalf("got %v", err)
	}
	if got, _ := r.task(); got.ID != unsettled.TaskID || got.Status != retry.StatusInit {
		t.Errorf("%+v", got)
	}
	r.expires()
	r.proxy.Accept()
}

// Trap: a call goes on after its lease was lost in an outage, and its result is written over what was decided meanwhile.
func TestRecordWhoseLeaseIsLostDuringTheCall(t *testing.T) {
	t.Parallel()
	r := newRecording(t, func(c *publisher.Config) { c.Lease, c.RecordTimeout = time.Second, 5*time.Second })
	err := r.Record(t.Context(), publisher.Task{Scene: "s", Key: "k"}, func(ctx context.Context) error {
		testenv.Eventually(t, 20*time.Second, func() bool {
			got, ok := r.task()
			return ok && got.LeaseUntil.Sub(got.CreatedAt) > 3*time.Second
		}, "the call outlives a few leases")
		r.proxy.Refuse()
		r.proxy.Cut()
		r.expires()
		r.proxy.Accept()
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			t.Error("the call is not told")
		}
		if cause := context.Cause(ctx); !errors.Is(cause, retry.ErrLostClaim) {
			t.Errorf("cause %v", cause)
		}
		return nil
	})
	var unsettled *publisher.UnsettledError
	if !errors.As(err, &unsettled) || unsettled.Outcome != nil || !errors.Is(err, retry.ErrLostClaim) {
		t.Fatalf("got %v", err)
	}
	if got, _ := r.task(); got.ID != unsettled.TaskID || got.Status != retry.StatusManualReview || got.StopReason != retry.ReasonManualReview {
		t.Errorf("%+v", got)
	}
}

// Trap: a record decides by a deadline of its own, though its workflow's was fixed by an earlier task.
func TestRecordSharesItsWorkflowsDeadline(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	first, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Workflow: "w", Deadline: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	task := publisher.Task{Scene: "s", Key: "k", Workflow: "w", Deadline: 100 * time.Hour}
	err = p.Record(t.Context(), task, func(context.Context) error { return retry.After(2*time.Hour, retry.Transient(errBoom)) })
	if !errors.Is(err, errBoom) || errors.Is(err, retry.ErrEscalated) {
		t.Errorf("got %v", err)
	}
	list, err := store.List(t.Context(), persistence.Filter{Key: "k"})
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list[0]; !got.DeadlineAt.Equal(*get(t, store, first.ID).DeadlineAt) || got.Status != retry.StatusFailed || got.StopReason != retry.ReasonDeadlineExceeded {
		t.Errorf("%+v", got)
	}
}
