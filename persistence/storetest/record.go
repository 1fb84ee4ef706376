package storetest

import (
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// recordTests are about tasks in INIT: stored under the claim of the publisher that
// is about to make the call.
func recordTests(add adder) {
	record := func(h *harness) persistence.Claim {
		h.Helper()
		token := uuid.NewString()
		in := h.insert(persistence.NewTask{Status: retry.StatusInit, Lease: time.Minute, Token: token, By: "publisher", Key: "k"})[0]
		same(h, "created", in.Created, true)
		same(h, "status", in.Status, retry.StatusInit)
		return persistence.Claim{ID: in.ID, Token: token}
	}
	add("Record/is held from the start", func(h *harness) {
		c := record(h)
		t := h.get(c.ID)
		same(h, "token", t.ClaimToken, c.Token)
		same(h, "holder", t.ClaimedBy, "publisher")
		same(h, "attempt", t.Attempt, 0)
		h.near("lease", t.LeaseUntil.Sub(t.CreatedAt), time.Minute)
		// No consumer gets it, not even when the lease is over, and no scan wakes it.
		h.Shift(h, c.ID, DispatchAfter, -time.Hour)
		h.Shift(h, c.ID, NextAt, -time.Hour)
		for range 2 {
			same(h, "claimed", len(h.claimAs(c.Token, c.ID)), 0)
			_, got := h.claim(c.ID)
			same(h, "claimed", len(got), 0)
			same(h, "to wake", len(h.undispatched()), 0)
			h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		}
		released, err := h.Store.Release(h.ctx, []persistence.Claim{c})
		h.ok(err)
		same(h, "released", len(released), 0)
	})
	add("Record/what is needed", func(h *harness) {
		for _, t := range []persistence.NewTask{
			{Status: retry.StatusInit, Token: uuid.NewString()},
			{Status: retry.StatusInit, Lease: time.Minute},
			{Status: retry.StatusInit, Lease: time.Minute, Token: "x"},
			{Lease: time.Minute}, {Token: uuid.NewString()}, {Status: retry.StatusExecuting},
		} {
			t.Scene = scene
			_, err := h.Store.Insert(h.ctx, []persistence.NewTask{t})
			h.is(err, retry.ErrInvalid)
		}
	})
	add("Record/a held key", func(h *harness) {
		c := record(h)
		in := h.insert(persistence.NewTask{Status: retry.StatusInit, Lease: time.Minute, Token: uuid.NewString(), Key: "k"})[0]
		same(h, "created", in.Created, false)
		same(h, "holder", in.ID, c.ID)
		same(h, "status", in.Status, retry.StatusInit)
		same(h, "token", h.get(c.ID).ClaimToken, c.Token)
	})
	add("Record/renewed", func(h *harness) {
		c := record(h)
		h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		kept, err := h.Store.Renew(h.ctx, time.Minute, []persistence.Claim{{ID: c.ID, Token: uuid.NewString()}})
		h.ok(err)
		same(h, "kept by a stranger", len(kept), 0)
		kept, err = h.Store.Renew(h.ctx, time.Minute, []persistence.Claim{c})
		h.ok(err)
		same(h, "kept", len(kept), 1)
		same(h, "expired", len(h.expired()), 0)
	})
	add("Record/every outcome", func(h *harness) {
		for _, s := range []retry.Status{retry.StatusWait, retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview} {
			token := uuid.NewString()
			in := h.insert(persistence.NewTask{Status: retry.StatusInit, Lease: time.Minute, Token: token})[0]
			r := result(persistence.Claim{ID: in.ID, Token: token}, s)
			r.Event = &persistence.Event{From: retry.StatusInit, Actor: "publisher"}
			stale := r
			stale.Token = uuid.NewString()
			same(h, "a stranger's", h.finish(stale)[0].Applied, false)
			for range 2 { // the second time it is recognised
				same(h, "applied", h.finish(r)[0].Applied, true)
			}
			t := h.get(in.ID)
			same(h, "status", t.Status, s)
			same(h, "attempt", t.Attempt, 0)
			events := h.events(in.ID)
			if len(events) != 1 || events[0].From != retry.StatusInit || events[0].To != s || events[0].Attempt != 0 {
				h.Errorf("journal %+v", events)
			}
			if s == retry.StatusWait {
				_, got := h.claim(in.ID)
				same(h, "claimed", len(got), 1)
				same(h, "attempt", got[0].Attempt, 1)
			}
		}
	})
	add("Record/expired, and not charged twice", func(h *harness) {
		c := record(h)
		h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		e := h.expired()
		if len(e) != 1 || e[0].Claim != c || e[0].Status != retry.StatusInit || e[0].Attempt != 0 || e[0].ClaimedBy != "publisher" {
			h.Fatalf("expired %+v", e)
		}
		r := result(c, retry.StatusWait)
		r.Unknown = true
		ids, err := h.Store.Expire(h.ctx, []persistence.Result{r})
		h.ok(err)
		same(h, "expired", len(ids), 1)
		t := h.get(c.ID)
		same(h, "status", t.Status, retry.StatusWait)
		same(h, "crashes", t.Crashes, 1)
		same(h, "uncharged", t.Uncharged, 0)
		same(h, "late success", h.end(c, retry.StatusSuccess), false)
	})
	add("Record/a person's hand", func(h *harness) {
		for verb, want := range map[persistence.Verb]retry.Status{
			persistence.Succeed: retry.StatusSuccess, persistence.Fail: retry.StatusFailed, persistence.Cancel: retry.StatusCancelled,
		} {
			token := uuid.NewString()
			in := h.insert(persistence.NewTask{Status: retry.StatusInit, Lease: time.Minute, Token: token})[0]
			c := persistence.Claim{ID: in.ID, Token: token}
			t, err := h.Store.Operate(h.ctx, persistence.Action{Verb: verb, ID: in.ID, Actor: "ann"})
			h.ok(err)
			same(h, "status", t.Status, want)
			kept, err := h.Store.Renew(h.ctx, time.Minute, []persistence.Claim{c})
			h.ok(err)
			same(h, "kept", len(kept), 0)
			same(h, "late success", h.end(c, retry.StatusSuccess), false)
		}
	})
}
