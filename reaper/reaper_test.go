package reaper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/reaper"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a store and what a reaper published.
type fixture struct {
	t      *testing.T
	schema string
	store  *persistence.Postgres

	mu        sync.Mutex
	published []persistence.Wake
	refuse    int // how many of each batch the broker does not confirm, from its end
	depth     func(context.Context) (int, error)
}

var errNoConfirm = errors.New("not confirmed")

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, schema: storetest.Schema(t), depth: func(context.Context) (int, error) { return 0, nil }}
	f.store = storetest.OpenConfig(t, persistence.Config{Schema: f.schema})
	return f
}

func (f *fixture) config(name string) reaper.Config {
	scene := func(name string, unknown retry.UnknownMode) retry.Scene {
		return retry.Scene{Name: name, Unknown: unknown, Policy: retry.Policy{Kind: retry.Fixed, Base: time.Second, MaxAttempts: 3}}
	}
	return reaper.Config{
		Store: f.store, Scenes: []retry.Scene{scene("repeat", retry.UnknownRepeat), scene("review", "")}, Grid: topology.Grid(), Name: name,
		Publish: f.publish, Depth: func(ctx context.Context) (int, error) { return f.depth(ctx) },
		Interval: 100 * time.Millisecond, Logger: testenv.Logger(f.t),
	}
}

func (f *fixture) reaper(name string) *reaper.Reaper {
	f.t.Helper()
	r, err := reaper.New(f.config(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) publish(_ context.Context, wakes []persistence.Wake) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ok := make([]bool, len(wakes))
	var err error
	for i := range wakes {
		if ok[i] = i < len(wakes)-f.refuse; ok[i] {
			f.published = append(f.published, wakes[i])
		} else {
			err = errNoConfirm
		}
	}
	return ok, err
}

func (f *fixture) taken() map[int64]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[int64]int{}
	for _, w := range f.published {
		out[w.ID]++
	}
	f.published = nil
	return out
}

func (f *fixture) insert(n int, scene string) (ids []int64) {
	f.t.Helper()
	tasks := make([]persistence.NewTask, n)
	for i := range tasks {
		tasks[i] = persistence.NewTask{Scene: scene, Args: []byte("1")}
	}
	in, err := f.store.Insert(f.t.Context(), tasks)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range in {
		ids = append(ids, r.ID)
	}
	return ids
}

// hold claims tasks for a consumer that is gone by now.
func (f *fixture) hold(ids []int64) string {
	f.t.Helper()
	token := uuid.NewString()
	got, err := f.store.Claim(f.t.Context(), persistence.ClaimRequest{IDs: ids, Scenes: []string{"repeat", "review", "other"}, Token: token, By: "ghost", Lease: time.Hour})
	if err != nil || len(got) != len(ids) {
		f.t.Fatalf("%d claimed, %v", len(got), err)
	}
	f.exec(`UPDATE {task} SET lease_until = clock_timestamp() - interval '1 second' WHERE status = 'EXECUTING'`)
	return token
}

func (f *fixture) exec(query string, args ...any) {
	f.t.Helper()
	if _, err := f.store.DB().ExecContext(f.t.Context(), strings.ReplaceAll(query, "{task}", f.schema+".task"), args...); err != nil {
		f.t.Fatal(err)
	}
}

// lose makes the wake-ups of all waiting tasks overdue.
func (f *fixture) lose() {
	f.t.Helper()
	f.exec(`UPDATE {task} SET dispatch_after = clock_timestamp() - interval '1 second' WHERE status = 'WAIT'`)
}

func (f *fixture) scan(r *reaper.Reaper) reaper.Scan {
	f.t.Helper()
	s, leads := r.Scan(f.t.Context())
	if !leads {
		f.t.Fatalf("does not lead: %v", s.Err)
	}
	return s
}

func (f *fixture) get(id int64) retry.Task {
	f.t.Helper()
	task, err := f.store.Get(f.t.Context(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	return task
}

func TestExpiredClaims(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := append(append(f.insert(3, "repeat"), f.insert(1, "review")...), f.insert(1, "other")...)
	token := f.hold(ids)
	f.exec(`UPDATE {task} SET crashes = 2, uncharged = 2, attempt = 3 WHERE id = $1`, ids[1])
	f.exec(`UPDATE {task} SET lease_until = clock_timestamp() + interval '1 hour' WHERE id = $1`, ids[2])
	s := f.scan(f.reaper("r"))
	if s.Expired != 3 || s.Err != nil {
		t.Errorf("%+v, want 3 expired", s)
	}
	for i, want := range []struct {
		status  retry.Status
		reason  retry.Reason
		crashes int
	}{
		{retry.StatusWait, "", 1}, {retry.StatusManualReview, retry.ReasonCrashLoop, 3}, {retry.StatusExecuting, "", 0},
		{retry.StatusManualReview, retry.ReasonManualReview, 1}, {retry.StatusExecuting, "", 0},
	} {
		if got := f.get(ids[i]); got.Status != want.status || got.StopReason != want.reason || got.Crashes != want.crashes {
			t.Errorf("task %d: %s %q, %d crashes, want %+v", i, got.Status, got.StopReason, got.Crashes, want)
		}
	}
	if got := f.taken(); len(got) != 1 || got[ids[0]] != 1 {
		t.Errorf("published %v, want the one that waits", got)
	}
	// The claim is fenced off, and the journal tells why.
	done, err := f.store.Finish(t.Context(), []persistence.Result{{Claim: persistence.Claim{ID: ids[0], Token: token}, Status: retry.StatusSuccess, Reason: retry.ReasonSuccess}})
	if err != nil || done[0].Applied {
		t.Errorf("a late result was applied: %v, %v", done, err)
	}
	events, err := f.store.Events(t.Context(), ids[0])
	if err != nil || len(events) != 1 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	e := events[0]
	if e.Facts == nil || !e.Facts.Crashed || e.Decision == nil || e.PolicyVersion == 0 || !strings.Contains(e.Error, "ghost") || e.Actor != "reaper r" {
		t.Errorf("event %+v", e)
	}
	rules, err := f.store.Policy(t.Context(), "repeat", e.PolicyVersion)
	if err != nil {
		t.Fatal(err)
	}
	if again := retry.Decide(rules, *e.Facts); again != *e.Decision {
		t.Errorf("decided anew: %+v, was %+v", again, *e.Decision)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := f.insert(1100, "repeat")
	f.hold(held)
	lost := f.insert(2100, "repeat")
	f.exec(`UPDATE {task} SET dispatch_after = clock_timestamp() - interval '1 second' WHERE id = ANY(ARRAY(SELECT id FROM {task} WHERE status = 'WAIT'))`)
	s := f.scan(f.reaper("r"))
	if s.Expired != 1100 || s.Dispatched != 2100 || s.Err != nil {
		t.Errorf("%+v, want 1100 expired, 2100 dispatched", s)
	}
	got := f.taken()
	for _, id := range append(held, lost...) {
		if got[id] != 1 {
			t.Fatalf("task %d woken %d times", id, got[id])
		}
	}
	if s := f.scan(f.reaper("r")); s.Expired != 0 || s.Dispatched != 0 {
		t.Errorf("and again: %+v", s)
	}
}

func TestUnconfirmedStaysDue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(10, "repeat")
	f.lose()
	f.refuse = 4
	r := f.reaper("r")
	if s := f.scan(r); s.Dispatched != 6 || !errors.Is(s.Err, errNoConfirm) {
		t.Errorf("%+v, want 6 dispatched", s)
	}
	f.refuse = 0
	if s := f.scan(r); s.Dispatched != 4 || s.Err != nil {
		t.Errorf("%+v, want 4 dispatched", s)
	}
	if got := f.taken(); len(got) != 10 {
		t.Errorf("%d woken, want 10", len(got))
	}
}

// A broker that cannot be asked stops no other pass.
func TestBrokerAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := f.insert(3, "review")
	f.hold(ids[:1])
	f.lose()
	f.exec(`UPDATE {task} SET status = 'SUCCESS', finished_at = clock_timestamp() - interval '30 days' WHERE id = $1`, ids[2])
	away := errors.New("broker away")
	f.depth = func(context.Context) (int, error) { return 0, away }
	if s := f.scan(f.reaper("r")); s.Expired != 1 || s.Dispatched != 0 || s.Backlog != -1 || s.Removed != 1 || !errors.Is(s.Err, away) {
		t.Errorf("%+v", s)
	}
}

// With a full ready queue, late tasks are waiting, not lost.
func TestBacklog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	service := testenv.Service(t)
	testenv.DeclareTopology(t, service, topology.Classic)
	conn := testenv.AMQP(t)
	ready := topology.NamesOf(service).Ready()
	f.depth = func(ctx context.Context) (int, error) { return topology.Depth(ctx, conn, ready) }
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for i := range reaper.Backlog {
		if err := ch.PublishWithContext(t.Context(), "", ready, false, false, amqp.Publishing{Body: fmt.Appendf(nil, `{"id":%d}`, i+1)}); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, 10*time.Second, func() bool { n, err := f.depth(t.Context()); return err == nil && n == reaper.Backlog }, "the queue is full")
	f.insert(50, "repeat")
	f.lose()
	r := f.reaper("r")
	if s := f.scan(r); s.Dispatched != reaper.Trickle || s.Backlog != reaper.Backlog || s.Err != nil {
		t.Errorf("%+v, want %d dispatched", s, reaper.Trickle)
	}
	if _, err := ch.QueuePurge(ready, false); err != nil {
		t.Fatal(err)
	}
	if s := f.scan(r); s.Dispatched != 50-reaper.Trickle || s.Backlog != 0 {
		t.Errorf("%+v, want the others", s)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := f.insert(1203, "repeat")
	f.exec(`UPDATE {task} SET status = 'FAILED', stop_reason = 'fail_permanent', finished_at = clock_timestamp() - interval '2 hours' WHERE id <> ALL(ARRAY[$1, $2]::bigint[])`, ids[0], ids[1])
	f.exec(`UPDATE {task} SET status = 'SUCCESS', finished_at = clock_timestamp() WHERE id = $1`, ids[0])
	cfg := f.config("r")
	for _, c := range []struct {
		retention time.Duration
		want      int
	}{{-1, 0}, {0, 0}, {time.Hour, 1201}, {time.Hour, 0}} {
		cfg.Retention = c.retention
		r, err := reaper.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if s := f.scan(r); s.Removed != c.want || s.Err != nil {
			t.Errorf("retention %v: %+v, want %d removed", c.retention, s, c.want)
		}
	}
	f.get(ids[0])
	f.get(ids[1])
}

func TestOneLeads(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	scans := make(chan reaper.Scan, 100)
	cfg := f.config("a")
	cfg.OnScan = func(s reaper.Scan) {
		select {
		case scans <- s:
		default:
		}
	}
	a, err := reaper.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Run(ctx) }()
	first := testenv.Receive(t, 10*time.Second, "a scan", scans)
	b := f.reaper("b")
	f.insert(3, "repeat")
	f.lose()
	if s, leads := b.Scan(t.Context()); leads || s.Err != nil {
		t.Errorf("two lead: %+v", s)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { s := testenv.Receive(t, 10*time.Second, "a scan", scans); return s.Dispatched == 3 }, "the first wakes them")
	cancel()
	testenv.Closed(t, 10*time.Second, "Run returns", ended)
	if s := f.scan(b); s.Epoch <= first.Epoch || s.Err != nil { // at once: the first gave the lease up
		t.Errorf("epoch %d after %d, %v", s.Epoch, first.Epoch, s.Err)
	}
}

func TestRunWithoutADatabase(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, dsn := testenv.ProxyURL(t, testenv.PostgresDSN(t))
	cfg := f.config("r")
	cfg.Store = storetest.OpenConfig(t, persistence.Config{DSN: dsn, Schema: f.schema})
	scans := make(chan reaper.Scan, 1000)
	cfg.OnScan = func(s reaper.Scan) { scans <- s }
	r, err := reaper.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	testenv.Receive(t, 10*time.Second, "a scan", scans)
	proxy.Refuse()
	proxy.Cut()
	f.insert(2, "repeat")
	f.lose()
	proxy.Accept()
	testenv.Eventually(t, 10*time.Second, func() bool { s := testenv.Receive(t, 10*time.Second, "a scan", scans); return s.Dispatched == 2 }, "scans work again")
	proxy.Freeze()
	cancel()
	testenv.Closed(t, 10*time.Second, "Run returns, though the database is silent", ended)
	proxy.Thaw()
}

// After an outage of Postgres nobody could have renewed: the holders that live get
// a moment first.
func TestNoExpiryRightAfterAnOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, dsn := testenv.ProxyURL(t, testenv.PostgresDSN(t))
	cfg := f.config("r")
	cfg.Store = storetest.OpenConfig(t, persistence.Config{DSN: dsn, Schema: f.schema})
	cfg.Settle = time.Second
	r, err := reaper.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s := f.scan(r); s.Err != nil {
		t.Fatal(s.Err)
	}
	f.hold(f.insert(1, "repeat"))
	proxy.Refuse()
	proxy.Cut()
	if s, _ := r.Scan(t.Context()); s.Err == nil {
		t.Fatal("a scan worked without a database")
	}
	proxy.Accept()
	outage := time.Now()
	testenv.Eventually(t, 10*time.Second, func() bool {
		s, leads := r.Scan(t.Context())
		if early := time.Since(outage) < cfg.Settle-100*time.Millisecond; leads && early && s.Expired > 0 {
			t.Fatal("a claim was ended right after the outage")
		}
		return s.Expired == 1
	}, "the claim is ended")
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	_, err := reaper.New(reaper.Config{Interval: -1})
	var field *retry.FieldError
	if !errors.As(err, &field) || !strings.Contains(err.Error(), "scan interval") || !strings.Contains(err.Error(), "store") {
		t.Errorf("%v", err)
	}
}
