package storetest

import (
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func claimTests(add adder) {
	add("Claim/takes a due task", func(h *harness) {
		in := h.insert(persistence.NewTask{Args: []byte("args"), Headers: map[string]string{"a": "b"}, Deadline: time.Hour})[0]
		token, got := h.claim(in.ID)
		if len(got) != 1 {
			h.Fatalf("%d tasks claimed, want 1", len(got))
		}
		c := got[0]
		same(h, "status", c.Status, retry.StatusExecuting)
		same(h, "attempt", c.Attempt, 1)
		same(h, "token", c.ClaimToken, token)
		same(h, "holder", c.ClaimedBy, "worker")
		same(h, "arguments", string(c.Args), "args")
		same(h, "header", c.Headers["a"], "b")
		h.near("elapsed", c.Elapsed, 0)
		h.near("deadline", c.Deadline, time.Hour)
		h.near("late", c.Late, 0)
		if c.LeaseUntil == nil {
			h.Fatal("no lease")
		}
		h.near("lease", c.LeaseUntil.Sub(c.CreatedAt), time.Minute)
		stored := h.get(in.ID)
		same(h, "stored status", stored.Status, retry.StatusExecuting)
		same(h, "stored token", stored.ClaimToken, token)
		same(h, "events", len(h.events(in.ID)), 0)
	})
	add("Claim/tells elapsed, deadline and lateness", func(h *harness) {
		in := h.insert(persistence.NewTask{Delay: time.Second}, persistence.NewTask{})
		h.Shift(h, in[0].ID, CreatedAt, -time.Hour)
		h.Shift(h, in[0].ID, NextAt, -time.Minute)
		_, got := h.claim(in[0].ID, in[1].ID)
		h.near("elapsed", got[0].Elapsed, time.Hour)
		h.near("late", got[0].Late, 59*time.Second)
		same(h, "deadline", got[0].Deadline, 0)
	})
	add("Claim/only when due, with 50 ms of slack", func(h *harness) {
		in := h.insert(persistence.NewTask{Key: "tomorrow", Delay: 24 * time.Hour}, persistence.NewTask{Key: "early", Delay: 10 * time.Second}, persistence.NewTask{Key: "soon", Delay: 10 * time.Second})
		h.Shift(h, in[1].ID, NextAt, -9*time.Second)
		if _, got := h.claim(in[0].ID, in[1].ID, in[2].ID); len(got) != 0 {
			h.Errorf("claimed too early: %+v", got)
		}
		// Due in 40 ms at most: within the slack.
		task := h.insert(persistence.NewTask{Delay: 40 * time.Millisecond})[0]
		if _, got := h.claim(task.ID); len(got) != 1 {
			h.Error("a wake-up within the slack was refused")
		} else if got[0].Late > 0 && got[0].Late > time.Second {
			h.Errorf("late is %v", got[0].Late)
		}
	})
	add("Claim/same token is the same claim, counted once", func(h *harness) {
		ids := h.add(3)
		token, first := h.claim(ids...)
		h.Shift(h, ids[0], LeaseUntil, -time.Hour)
		second := h.claimAs(token, ids...)
		same(h, "claimed again", len(second), 3)
		for i := range second {
			same(h, "attempt", second[i].Attempt, 1)
			same(h, "task", second[i].ID, first[i].ID)
		}
		h.near("lease", h.get(ids[0]).LeaseUntil.Sub(*h.get(ids[1]).LeaseUntil), 0)
	})
	add("Claim/one claim at a time", func(h *harness) {
		c := h.held()
		if _, got := h.claim(c.ID); len(got) != 0 {
			h.Error("a held task was claimed by another")
		}
		h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		if _, got := h.claim(c.ID); len(got) != 0 {
			h.Error("an expired claim was taken over without the scan that counts it")
		}
		same(h, "token", h.get(c.ID).ClaimToken, c.Token)
	})
	add("Claim/only in WAIT", func(h *harness) {
		for _, s := range []retry.Status{retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview, retry.StatusCancelled} {
			c := h.in(s)
			before := h.get(c.ID)
			if _, got := h.claim(c.ID); len(got) != 0 {
				h.Errorf("a task in %s was claimed", s)
			}
			if got := h.claimAs(c.Token, c.ID); len(got) != 0 {
				h.Errorf("a task in %s was claimed by its last token", s)
			}
			same(h, "attempt", h.get(c.ID).Attempt, before.Attempt)
		}
	})
	add("Claim/known scenes of its own service", func(h *harness) {
		in := h.insert(persistence.NewTask{}, persistence.NewTask{Scene: "scene.b"})
		foreign, err := h.Other.Insert(h.ctx, []persistence.NewTask{{Scene: scene}})
		h.ok(err)
		if _, got := h.claim(in[0].ID, in[1].ID, foreign[0].ID, 1<<40); len(got) != 1 || got[0].ID != in[0].ID {
			h.Errorf("claimed %+v, want only the known scene of the own service", got)
		}
		same(h, "status of the unknown scene", h.get(in[1].ID).Status, retry.StatusWait)
		other, err := h.Other.Get(h.ctx, foreign[0].ID)
		h.ok(err)
		same(h, "status of the foreign task", other.Status, retry.StatusWait)
	})
	add("Claim/duplicate ids and none", func(h *harness) {
		ids := h.add(2)
		_, got := h.claim(ids[1], ids[0], ids[1], ids[0])
		same(h, "claimed", len(got), 2)
		same(h, "attempt", got[0].Attempt, 1)
		_, got = h.claim()
		same(h, "claimed of none", len(got), 0)
		none, err := h.Store.Claim(h.ctx, persistence.ClaimRequest{IDs: h.add(1), Token: uuid.NewString(), Lease: time.Minute})
		h.ok(err)
		same(h, "claimed of no scene", len(none), 0)
	})
	add("Claim/attempts count up", func(h *harness) {
		id := h.add(1)[0]
		for n := 1; n <= 3; n++ {
			c := h.take(id)
			same(h, "attempt", h.get(id).Attempt, n)
			h.end(c, retry.StatusWait)
		}
	})
	add("Claim/names of workers are cut and cleaned", func(h *harness) {
		id := h.add(1)[0]
		_, err := h.Store.Claim(h.ctx, persistence.ClaimRequest{IDs: []int64{id}, Scenes: []string{scene}, Token: uuid.NewString(), By: "a\x00\xff", Lease: time.Minute})
		h.ok(err)
		same(h, "holder", h.get(id).ClaimedBy, "a\uFFFD")
	})

	add("Renew/extends the leases that are held", func(h *harness) {
		ids := h.add(3)
		token, _ := h.claim(ids...)
		h.Shift(h, ids[0], LeaseUntil, -30*time.Second)
		h.Shift(h, ids[1], LeaseUntil, -time.Hour) // over, but nobody took it
		claims := []persistence.Claim{{ID: ids[2], Token: token}, {ID: ids[0], Token: token}, {ID: ids[1], Token: token}}
		kept, err := h.Store.Renew(h.ctx, time.Hour, claims)
		h.ok(err)
		same(h, "kept", len(kept), 3)
		for _, id := range ids {
			h.near("lease", h.get(id).LeaseUntil.Sub(h.get(id).CreatedAt), time.Hour)
		}
		for _, c := range kept {
			same(h, "token", c.Token, token)
		}
	})
	add("Renew/stale tokens get nothing", func(h *harness) {
		fine, stale, expired, acted, ended := h.held(), h.held(), h.held(), h.held(), h.held()
		stale.Token = uuid.NewString()
		h.expireNow(expired.ID)
		_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: acted.ID, Actor: "ann"})
		h.ok(err)
		h.end(ended, retry.StatusSuccess)
		kept, err := h.Store.Renew(h.ctx, time.Hour, []persistence.Claim{fine, stale, expired, acted, ended, {ID: 1 << 40, Token: uuid.NewString()}})
		h.ok(err)
		if len(kept) != 1 || kept[0] != fine {
			h.Errorf("kept %v, want only %v", kept, fine)
		}
		for _, c := range []persistence.Claim{expired, acted, ended} {
			if t := h.get(c.ID); t.LeaseUntil != nil {
				h.Errorf("a lost claim has a lease: %+v", t)
			}
		}
		none, err := h.Store.Renew(h.ctx, time.Hour, nil)
		h.ok(err)
		same(h, "kept of none", len(none), 0)
	})

	add("Release/hands back and does not count", func(h *harness) {
		ids := h.add(2)
		h.end(h.take(ids[1]), retry.StatusWait) // one counted attempt
		a, b := h.take(ids[0]), h.take(ids[1])
		same(h, "attempt", h.get(ids[1]).Attempt, 2)
		got, err := h.Store.Release(h.ctx, []persistence.Claim{b, a})
		h.ok(err)
		same(h, "released", len(got), 2)
		for i, want := range []int{0, 1} {
			t := h.get(ids[i])
			same(h, "attempt", t.Attempt, want)
			same(h, "status", t.Status, retry.StatusWait)
			same(h, "crashes", t.Crashes, 0)
			if t.LeaseUntil != nil {
				h.Error("a released task has a lease")
			}
			if gap := t.DispatchAfter.Sub(t.NextAt); gap < persistence.DispatchGap {
				h.Errorf("the scan wakes a released task after %v, want %v or more", gap, persistence.DispatchGap)
			}
		}
		// At once claimable by anyone.
		_, claimed := h.claim(ids...)
		same(h, "claimed again", len(claimed), 2)
	})
	add("Release/stale tokens write nothing", func(h *harness) {
		stale, expired, acted, ended, twice := h.held(), h.held(), h.held(), h.held(), h.held()
		stale.Token = uuid.NewString()
		h.expireNow(expired.ID)
		_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Succeed, ID: acted.ID, Actor: "ann"})
		h.ok(err)
		h.end(ended, retry.StatusWait)
		_, err = h.Store.Release(h.ctx, []persistence.Claim{twice})
		h.ok(err)
		claims := []persistence.Claim{stale, expired, acted, ended, twice}
		before := map[int64]retry.Task{}
		for _, c := range claims {
			before[c.ID] = h.get(c.ID)
		}
		got, err := h.Store.Release(h.ctx, claims)
		h.ok(err)
		same(h, "released", len(got), 0)
		for id, t := range before {
			now := h.get(id)
			same(h, "attempt", now.Attempt, t.Attempt)
			same(h, "status", now.Status, t.Status)
			same(h, "dispatch", now.DispatchAfter, t.DispatchAfter)
		}
		same(h, "status of the stale one", h.get(stale.ID).Status, retry.StatusExecuting)
		// And what was released is not finished by the one that had it.
		same(h, "finish after release", h.end(twice, retry.StatusSuccess), false)
		same(h, "status", h.get(twice.ID).Status, retry.StatusWait)
	})
}

// expireNow lets a lease run out and the scan take the task.
func (h *harness) expireNow(id int64) {
	h.Helper()
	h.Shift(h, id, LeaseUntil, -time.Hour)
	for _, e := range h.expired() {
		if e.ID != id {
			continue
		}
		got, err := h.Store.Expire(h.ctx, []persistence.Result{{Claim: e.Claim, Status: retry.StatusWait, Reason: retry.ReasonScheduleRetry, Unknown: true}})
		h.ok(err)
		same(h, "expired", len(got), 1)
		return
	}
	h.Fatalf("task %d is not found to be expired", id)
}
