package reaper_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/reaper"
	"github.com/spillway-mq/spillway/retry"
)

// meddler is a store in whose calls something happens: hook is told of each before and after it, and its error is
// the call's.
type meddler struct {
	persistence.Store
	hook func(call string, after bool) error
}

func meddle[T any](m *meddler, call string, f func() (T, error)) (T, error) {
	var none T
	if err := m.hook(call, false); err != nil {
		return none, err
	}
	out, err := f()
	if err != nil {
		return none, err
	}
	return out, m.hook(call, true)
}

func (m *meddler) Expired(ctx context.Context, scenes []string, after int64, limit int) ([]persistence.Expired, error) {
	return meddle(m, "Expired", func() ([]persistence.Expired, error) { return m.Store.Expired(ctx, scenes, after, limit) })
}

func (m *meddler) Expire(ctx context.Context, r []persistence.Result) ([]int64, error) {
	return meddle(m, "Expire", func() ([]int64, error) { return m.Store.Expire(ctx, r) })
}

func (m *meddler) Wakes(ctx context.Context, ids []int64) ([]persistence.Wake, error) {
	return meddle(m, "Wakes", func() ([]persistence.Wake, error) { return m.Store.Wakes(ctx, ids) })
}

func (m *meddler) Undispatched(ctx context.Context, limit int) ([]persistence.Wake, error) {
	return meddle(m, "Undispatched", func() ([]persistence.Wake, error) { return m.Store.Undispatched(ctx, limit) })
}

func (m *meddler) Dispatched(ctx context.Context, w []persistence.Wake) error {
	_, err := meddle(m, "Dispatched", func() (struct{}, error) { return struct{}{}, m.Store.Dispatched(ctx, w) })
	return err
}

func (m *meddler) Sweep(ctx context.Context, retention time.Duration, limit int) (int, error) {
	return meddle(m, "Sweep", func() (int, error) { return m.Store.Sweep(ctx, retention, limit) })
}

// meddled returns a reaper on a store in whose calls something happens.
func (f *fixture) meddled(store persistence.Store, hook func(call string, after bool) error) *reaper.Reaper {
	f.t.Helper()
	cfg := f.config("r")
	cfg.Store, cfg.Settle = &meddler{store, hook}, time.Millisecond
	r, err := reaper.New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) finish(status retry.Status, token string, ids ...int64) {
	f.t.Helper()
	var results []persistence.Result
	for _, id := range ids {
		results = append(results, persistence.Result{Claim: persistence.Claim{ID: id, Token: token}, Status: status, Reason: retry.ReasonSuccess})
	}
	done, err := f.store.Finish(f.t.Context(), results)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, d := range done {
		if !d.Applied {
			f.t.Fatalf("task %d is not finished", d.ID)
		}
	}
}

// Trap: a rescue overwrites a task that was finished between the rescuer's read and its write.
func TestRescueDoesNotOverwriteATaskFinishedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := f.insert(2, "repeat")
	token := f.hold(ids)
	r := f.meddled(f.store, func(call string, after bool) error {
		if call == "Expired" && after {
			f.finish(retry.StatusSuccess, token, ids[0])
		}
		return nil
	})
	if s := f.scan(r); s.Expired != 1 || s.Err != nil {
		t.Errorf("%+v, want 1 expired", s)
	}
	if got := f.get(ids[0]); got.Status != retry.StatusSuccess || got.Crashes != 0 {
		t.Errorf("%s with %d crashes", got.Status, got.Crashes)
	}
	if events, err := f.store.Events(t.Context(), ids[0]); err != nil || len(events) != 0 {
		t.Errorf("journal %+v, %v", events, err)
	}
	if got := f.taken(); got[ids[0]] != 0 || got[ids[1]] != 1 {
		t.Errorf("woken %v", got)
	}
}

// Trap: a page full of rows that cannot be rescued starves the rows behind it.
func TestPageThatCannotBeRescuedStarvesNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := f.insert(1010, "repeat") // a page and some
	stuck, rest := ids[:1000], ids[1000:]
	token := f.hold(ids)
	renewed := false
	r := f.meddled(f.store, func(call string, after bool) error {
		if call == "Expired" && after && !renewed {
			var claims []persistence.Claim
			for _, id := range stuck {
				claims = append(claims, persistence.Claim{ID: id, Token: token})
			}
			renewed = true
			kept, err := f.store.Renew(t.Context(), time.Hour, claims)
			if len(kept) != len(stuck) {
				t.Errorf("%d renewed", len(kept))
			}
			return err
		}
		return nil
	})
	if s := f.scan(r); s.Expired != len(rest) || s.Err != nil {
		t.Errorf("%+v, want %d expired", s, len(rest))
	}
	for _, id := range rest {
		if got := f.get(id); got.Status != retry.StatusWait {
			t.Fatalf("task %d is %s", id, got.Status)
		}
	}
}

// Trap: a reaper ends or changes what it does not know: tasks of scenes that only another build or another service has.
func TestReaperLeavesScenesAloneThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := storetest.OpenConfig(t, persistence.Config{Schema: f.schema, Service: "another"})
	in, err := other.Insert(t.Context(), []persistence.NewTask{{Scene: "repeat"}, {Scene: "other"}})
	if err != nil {
		t.Fatal(err)
	}
	foreign := []int64{in[0].ID, in[1].ID}
	if got, err := other.Claim(t.Context(), persistence.ClaimRequest{IDs: foreign, Scenes: []string{"repeat", "other"}, Token: uuid.NewString(), Lease: time.Hour}); err != nil || len(got) != 2 {
		t.Fatalf("%d claimed, %v", len(got), err)
	}
	own := f.insert(1, "other")
	f.hold(own) // lets all leases run out
	before := []retry.Task{f.get(own[0])}
	for _, id := range foreign {
		task, err := other.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, task)
	}
	if s := f.scan(f.reaper("r")); s.Expired+s.Dispatched+s.Removed != 0 || s.Err != nil {
		t.Errorf("%+v", s)
	}
	for i, was := range before {
		store := other
		if i == 0 {
			store = f.store
		}
		now, err := store.Get(t.Context(), was.ID)
		if err != nil || now.Status != retry.StatusExecuting || now.ClaimToken != was.ClaimToken || !now.LeaseUntil.Equal(*was.LeaseUntil) || now.Crashes != 0 {
			t.Errorf("task %d of %s/%s: %+v, %v", was.ID, was.Service, was.Scene, now, err)
		}
	}
}

// Trap: one scan that fails stops the others.
func TestFailingScanStopsNoOther(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for call, want := range map[string]reaper.Scan{
		"Expired": {Dispatched: 1, Removed: 1}, "Expire": {Dispatched: 1, Removed: 1},
		"Undispatched": {Expired: 1, Removed: 1}, "Sweep": {Expired: 1, Dispatched: 1},
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			ids := f.insert(3, "review")
			f.hold(ids[:1])
			f.lose()
			f.exec(`UPDATE {task} SET status = 'SUCCESS', finished_at = clock_timestamp() - interval '30 days' WHERE id = $1`, ids[2])
			s := f.scan(f.meddled(f.store, func(c string, after bool) error {
				if c == call && !after {
					return boom
				}
				return nil
			}))
			if s.Expired != want.Expired || s.Dispatched != want.Dispatched || s.Removed != want.Removed || !errors.Is(s.Err, boom) {
				t.Errorf("%+v, want %+v", s, want)
			}
		})
	}
}

// Trap: a task that kills its workers circles for ever.
func TestTaskThatKillsItsWorkersStops(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.insert(1, "repeat")
	r := f.reaper("r")
	for n := 1; n <= retry.DefaultMaxCrashes; n++ {
		f.hold(id)
		if s := f.scan(r); s.Expired != 1 || s.Err != nil {
			t.Fatalf("%+v", s)
		}
		f.exec(`UPDATE {task} SET next_at = clock_timestamp() WHERE status = 'WAIT'`)
		if got := f.get(id[0]); n < retry.DefaultMaxCrashes && got.Status != retry.StatusWait {
			t.Fatalf("%s after %d crashes", got.Status, n)
		}
	}
	if got := f.get(id[0]); got.Status != retry.StatusManualReview || got.StopReason != retry.ReasonCrashLoop || got.Attempt != retry.DefaultMaxCrashes {
		t.Errorf("%s, %q after %d attempts", got.Status, got.StopReason, got.Attempt)
	}
}

// Trap: a crash uses up the only attempt of a task that has one, though nobody knows that it was made.
func TestCrashDoesNotUseUpTheOnlyAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.insert(1, "once")
	cfg := f.config("r")
	cfg.Scenes = []retry.Scene{{Name: "once", Unknown: retry.UnknownRepeat, Policy: retry.Policy{Kind: retry.Fixed, Base: time.Second, MaxAttempts: 1}}}
	r, err := reaper.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.store.Claim(t.Context(), persistence.ClaimRequest{IDs: id, Scenes: []string{"once"}, Token: uuid.NewString(), By: "ghost", Lease: -time.Hour})
	if err != nil || len(got) != 1 {
		t.Fatalf("%d claimed, %v", len(got), err)
	}
	if s := f.scan(r); s.Expired != 1 || s.Err != nil {
		t.Fatalf("%+v", s)
	}
	task := f.get(id[0])
	if task.Status != retry.StatusWait || task.Attempt != 1 || task.Uncharged != 1 {
		t.Fatalf("%s with %d attempts, %d uncharged", task.Status, task.Attempt, task.Uncharged)
	}
	// The next attempt is the one that counts.
	d := retry.Decide(cfg.Scenes[0].Rules(cfg.Grid), retry.Facts{TaskID: task.ID, Attempt: 2, Uncharged: task.Uncharged, Crashes: task.Crashes, Class: retry.ClassTransient})
	if d.Reason != retry.ReasonAttemptsExhausted {
		t.Errorf("%+v", d)
	}
}

// Trap: Postgres restarts in the middle of a scan, and the scan loses a task or does something twice.
func TestPostgresRestartsInTheMiddleOfAScan(t *testing.T) {
	t.Parallel()
	for _, at := range []struct {
		call  string
		after bool
	}{
		{"Expired", false}, {"Expired", true}, {"Expire", true}, {"Wakes", true}, {"Undispatched", true}, {"Dispatched", false}, {"Dispatched", true},
		{"Sweep", false}, {"Sweep", true},
	} {
		name := "before " + at.call
		if at.after {
			name = "after " + at.call
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy, dsn := testenv.ProxyURL(t, testenv.PostgresDSN(t))
			store := storetest.OpenConfig(t, persistence.Config{DSN: dsn, Schema: f.schema})
			ids := f.insert(3, "repeat")
			f.hold(ids[:1])
			f.lose()
			f.exec(`UPDATE {task} SET status = 'SUCCESS', finished_at = clock_timestamp() - interval '30 days' WHERE id = $1`, ids[2])
			restarted := false
			r := f.meddled(store, func(call string, after bool) error {
				if call == at.call && after == at.after && !restarted {
					restarted = true
					proxy.Refuse()
					proxy.Cut()
				}
				return nil
			})
			// The call itself was answered, so only the statements after it fail.
			s, leads := r.Scan(t.Context())
			if !restarted || !leads || s.Err == nil && at.call != "Sweep" {
				t.Errorf("%+v, restarted: %v", s, restarted)
			}
			proxy.Accept()
			f.lose() // what the restart kept from being sent
			testenv.Eventually(t, 20*time.Second, func() bool {
				s, leads := r.Scan(t.Context())
				return leads && s.Err == nil && f.get(ids[0]).Status == retry.StatusWait
			}, "scans work again")
			if got := f.get(ids[0]); got.Crashes != 1 || got.Attempt != 1 {
				t.Errorf("%d crashes in %d attempts", got.Crashes, got.Attempt)
			}
			if events, err := f.store.Events(t.Context(), ids[0]); err != nil || len(events) != 1 {
				t.Errorf("%d journal rows, %v", len(events), err)
			}
			if got := f.taken(); got[ids[0]] == 0 || got[ids[1]] == 0 {
				t.Errorf("woken %v", got)
			}
			if _, err := f.store.Get(t.Context(), ids[2]); !errors.Is(err, retry.ErrNotFound) {
				t.Errorf("the old task: %v", err)
			}
		})
	}
}
