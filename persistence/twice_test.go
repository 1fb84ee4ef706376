package persistence_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/retry"
)

// database/sql runs a statement again when its connection ends while lib/pq waits for the
// answer, although the server may have committed it. Here it always has.
func TestStatementRunTwice(t *testing.T) {
	p, dsn := storetest.NewLossy(t)
	s := p.Store(dsn, storetest.Schema(t))
	ctx := t.Context()
	ok := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// twice runs f, whose only statement is executed twice.
	twice := func(t *testing.T, f func(ctx context.Context) error) {
		t.Helper()
		ok(t, s.Ping(ctx)) // a live connection in the pool
		before := p.Cuts()
		p.CutAt(1)
		err := f(ctx)
		if p.Cuts() != before+1 {
			t.Fatalf("%d answers were dropped, want 1", p.Cuts()-before)
		}
		ok(t, err)
	}
	get := func(t *testing.T, id int64) retry.Task {
		t.Helper()
		task, err := s.Get(ctx, id)
		ok(t, err)
		return task
	}
	events := func(t *testing.T, id int64) int {
		t.Helper()
		e, err := s.Events(ctx, id)
		ok(t, err)
		return len(e)
	}
	add := func(t *testing.T, n int) []int64 {
		t.Helper()
		tasks := make([]persistence.NewTask, n)
		for i := range tasks {
			tasks[i].Scene = "a"
		}
		in, err := s.Insert(ctx, tasks)
		ok(t, err)
		var ids []int64
		for _, i := range in {
			ids = append(ids, i.ID)
		}
		return ids
	}
	held := func(t *testing.T, n int) []persistence.Claim {
		t.Helper()
		ids, token := add(t, n), uuid.NewString()
		got, err := s.Claim(ctx, persistence.ClaimRequest{IDs: ids, Scenes: []string{"a"}, Token: token, Lease: time.Minute})
		ok(t, err)
		var out []persistence.Claim
		for _, c := range got {
			out = append(out, persistence.Claim{ID: c.ID, Token: token})
		}
		return out
	}
	expired := func(t *testing.T, n int) []persistence.Claim {
		t.Helper()
		claims := held(t, n)
		for _, c := range claims {
			_, err := s.Renew(ctx, -time.Hour, []persistence.Claim{c})
			ok(t, err)
		}
		return claims
	}
	results := func(claims []persistence.Claim, status retry.Status) []persistence.Result {
		var out []persistence.Result
		for _, c := range claims {
			out = append(out, persistence.Result{Claim: c, Status: status, Reason: retry.ReasonScheduleRetry, Delay: time.Minute, Event: &persistence.Event{Actor: "w"}})
		}
		return out
	}

	t.Run("claim counts once", func(t *testing.T) {
		ids := add(t, 3)
		var got []persistence.Claimed
		twice(t, func(ctx context.Context) (err error) {
			got, err = s.Claim(ctx, persistence.ClaimRequest{IDs: ids, Scenes: []string{"a"}, Token: uuid.NewString(), Lease: time.Minute})
			return err
		})
		if len(got) != 3 {
			t.Errorf("%d tasks claimed, want 3", len(got))
		}
		for _, id := range ids {
			if task := get(t, id); task.Attempt != 1 {
				t.Errorf("attempt is %d, want 1", task.Attempt)
			}
		}
	})
	t.Run("insert is recognised", func(t *testing.T) {
		_, err := s.NextIDs(ctx, 1) // a block in hand
		ok(t, err)
		for _, task := range []persistence.NewTask{
			{Scene: "a", Key: "k1", Args: []byte("x")}, {Scene: "a"}, {Scene: "a", Key: "k2", Event: &persistence.Event{}},
			{Scene: "a", Status: retry.StatusManualReview},
		} {
			var in []persistence.Inserted
			twice(t, func(ctx context.Context) (err error) {
				in, err = s.Insert(ctx, []persistence.NewTask{task})
				return err
			})
			if !in[0].Created || in[0].Conflict || in[0].Status != get(t, in[0].ID).Status {
				t.Errorf("inserted %+v", in[0])
			}
			want := 0
			if task.Event != nil {
				want = 1
			}
			if n := events(t, in[0].ID); n != want {
				t.Errorf("%d journal rows, want %d", n, want)
			}
		}
		list, err := s.List(ctx, persistence.Filter{Key: "k1"})
		ok(t, err)
		if len(list) != 1 {
			t.Errorf("%d rows of one key", len(list))
		}
	})
	t.Run("submit is told so the second time", func(t *testing.T) {
		for _, message := range []string{"m", ""} {
			ids, err := s.NextIDs(ctx, 1)
			ok(t, err)
			list := []persistence.Submission{{MessageID: message, Task: persistence.NewTask{ID: ids[0], Scene: "submitted", Args: []byte("x")}}}
			if message != "" {
				list[0].Task.ID = 0
			}
			// Each answer is lost once, of begin first and of the commit last.
			for cut := 1; ; cut++ {
				before := p.Cuts()
				p.CutAt(cut)
				got, err := s.Submit(ctx, list)
				p.CutAt(0)
				if p.Cuts() > before {
					continue
				}
				ok(t, err)
				if cut < 4 || message != "" && !got[0].Repeated || message == "" && !got[0].Created {
					t.Errorf("submitted %+v after %d cuts", got[0], cut)
				}
				break
			}
		}
		list, err := s.List(ctx, persistence.Filter{Scenes: []string{"submitted"}})
		ok(t, err)
		if len(list) != 2 {
			t.Errorf("%d tasks of two messages", len(list))
		}
	})
	t.Run("finish is recognised", func(t *testing.T) {
		for _, status := range []retry.Status{retry.StatusSuccess, retry.StatusWait, retry.StatusManualReview} {
			claims := held(t, 2)
			lost := persistence.Claim{ID: add(t, 1)[0], Token: uuid.NewString()}
			var got []persistence.Finished
			twice(t, func(ctx context.Context) (err error) {
				got, err = s.Finish(ctx, results(append(claims, lost), status))
				return err
			})
			for i, want := range []bool{true, true, false} {
				if got[i].Applied != want {
					t.Errorf("applied is %v, want %v", got[i].Applied, want)
				}
			}
			if n := events(t, claims[0].ID); n != 1 {
				t.Errorf("%d journal rows, want 1", n)
			}
		}
	})
	t.Run("renew is harmless", func(t *testing.T) {
		claims := held(t, 2)
		twice(t, func(ctx context.Context) error {
			kept, err := s.Renew(ctx, time.Hour, claims)
			if len(kept) != 2 {
				t.Errorf("%d claims kept, want 2", len(kept))
			}
			return err
		})
	})
	t.Run("release is recognised", func(t *testing.T) {
		claims := held(t, 2)
		twice(t, func(ctx context.Context) error {
			got, err := s.Release(ctx, claims)
			if len(got) != 2 {
				t.Errorf("%d tasks released, want 2", len(got))
			}
			return err
		})
		if n := get(t, claims[0].ID).Attempt; n != 0 {
			t.Errorf("attempt is %d, want 0", n)
		}
	})
	t.Run("expire is recognised", func(t *testing.T) {
		claims := expired(t, 2)
		twice(t, func(ctx context.Context) error {
			got, err := s.Expire(ctx, results(claims, retry.StatusWait))
			if len(got) != 2 {
				t.Errorf("%d claims expired, want 2", len(got))
			}
			return err
		})
		task := get(t, claims[0].ID)
		if task.Crashes != 1 || events(t, task.ID) != 1 {
			t.Errorf("%d crashes and %d journal rows, want 1 each", task.Crashes, events(t, task.ID))
		}
	})
	t.Run("a person's act is recognised", func(t *testing.T) {
		for _, v := range []persistence.Verb{persistence.Retry, persistence.Succeed, persistence.Fail, persistence.Cancel} {
			id := add(t, 1)[0]
			twice(t, func(ctx context.Context) error {
				task, err := s.Operate(ctx, persistence.Action{Verb: v, ID: id, Actor: "ann"})
				if err == nil && task.ID != id {
					t.Errorf("%s: told task %d, want %d", v, task.ID, id)
				}
				return err
			})
			if n := events(t, id); n != 1 {
				t.Errorf("%s: %d journal rows, want 1", v, n)
			}
		}
	})
	t.Run("a lost wake-up's gap grows once", func(t *testing.T) {
		id := add(t, 1)[0]
		w, err := s.Wakes(ctx, []int64{id})
		ok(t, err)
		twice(t, func(ctx context.Context) error { return s.Dispatched(ctx, w) })
		task := get(t, id)
		if gap := task.DispatchAfter.Sub(task.NextAt); gap > persistence.DispatchGap+time.Second {
			t.Errorf("gap is %v, want %v", gap, persistence.DispatchGap)
		}
	})
	t.Run("policy and lead", func(t *testing.T) {
		twice(t, func(ctx context.Context) error {
			v, err := s.SavePolicy(ctx, "a", retry.Rules{})
			if v != 1 {
				t.Errorf("version is %d, want 1", v)
			}
			return err
		})
		twice(t, func(ctx context.Context) error {
			e, led, err := s.Lead(ctx, "me", time.Minute)
			if e != 1 || !led {
				t.Errorf("epoch is %d (%v), want 1", e, led)
			}
			return err
		})
	})
	t.Run("keys that are taken over are not left open", func(t *testing.T) {
		in, err := s.Insert(ctx, []persistence.NewTask{{Scene: "a", Key: "reuse"}})
		ok(t, err)
		_, err = s.Operate(ctx, persistence.Action{Verb: persistence.Cancel, ID: in[0].ID, Actor: "ann"})
		ok(t, err)
		// A transaction is not run again: the caller hears of it, and nothing was written.
		p.CutAt(1)
		if _, err := s.Insert(ctx, []persistence.NewTask{{Scene: "a", Key: "reuse", ReuseKey: true}}); err == nil {
			t.Log("the connection was cut at BEGIN, which is run again")
		}
		in, err = s.Insert(ctx, []persistence.NewTask{{Scene: "a", Key: "reuse", ReuseKey: true}})
		ok(t, err)
		list, err := s.List(ctx, persistence.Filter{Key: "reuse", Statuses: []retry.Status{retry.StatusWait}})
		ok(t, err)
		if len(list) != 1 || list[0].ID != in[0].ID {
			t.Errorf("%d tasks wait under the key, want 1", len(list))
		}
	})
}

// Postgres sends an error at once and the end of its answer after it. lib/pq does not notice if the connection ends
// in between, and would have the pool hand it out for ever.
func TestConnectionLostAfterAnError(t *testing.T) {
	p, dsn := storetest.NewLossy(t)
	s := p.Store(dsn, storetest.Schema(t))
	for range 500 {
		before := p.Cuts()
		p.CutAt(2)
		if _, err := s.DB().ExecContext(t.Context(), `SELECT 1 / $1::int`, 0); err == nil {
			t.Fatal("divided by zero")
		}
		p.CutAt(0)
		if err := s.Ping(t.Context()); err != nil {
			t.Fatalf("after the connection was lost: %v", err)
		}
		if _, err := s.NextIDs(t.Context(), 1000); err != nil {
			t.Fatalf("after the connection was lost: %v", err)
		}
		// Where both parts arrive together there is nothing to lose in between.
		if p.Cuts() > before {
			return
		}
	}
	t.Skip("the two parts always came together")
}
