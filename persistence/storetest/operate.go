package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func operateTests(add adder) {
	all := []retry.Status{retry.StatusWait, retry.StatusExecuting, retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview, retry.StatusCancelled}
	verbs := []struct {
		verb   persistence.Verb
		from   []retry.Status
		to     retry.Status
		reason retry.Reason
	}{
		{persistence.Retry, []retry.Status{retry.StatusWait, retry.StatusManualReview, retry.StatusFailed, retry.StatusCancelled}, retry.StatusWait, retry.ReasonOperatorRetry},
		{persistence.Succeed, []retry.Status{retry.StatusWait, retry.StatusExecuting, retry.StatusManualReview, retry.StatusFailed}, retry.StatusSuccess, retry.ReasonOperatorSucceed},
		{persistence.Fail, []retry.Status{retry.StatusWait, retry.StatusExecuting, retry.StatusManualReview}, retry.StatusFailed, retry.ReasonOperatorFail},
		{persistence.Cancel, []retry.Status{retry.StatusWait, retry.StatusExecuting, retry.StatusManualReview}, retry.StatusCancelled, retry.ReasonOperatorCancel},
	}
	for _, v := range verbs {
		add("Operate/"+string(v.verb)+" in every state", func(h *harness) {
			for _, from := range all {
				c := h.in(from)
				before := h.get(c.ID)
				got, err := h.Store.Operate(h.ctx, persistence.Action{Verb: v.verb, ID: c.ID, Actor: "ann", Note: "because"})
				t := h.get(c.ID)
				if !slices.Contains(v.from, from) {
					h.is(err, retry.ErrState)
					if err != nil && !strings.Contains(err.Error(), string(from)) {
						h.Errorf("the error does not name the state %s: %v", from, err)
					}
					same(h, "status", t.Status, from)
					same(h, "events", len(h.events(c.ID)), 0+len(eventsBefore(from)))
					continue
				}
				h.ok(err)
				same(h, "status told", got.Status, v.to)
				same(h, "status", t.Status, v.to)
				same(h, "ended", t.FinishedAt != nil, v.to.Terminal())
				want := v.reason
				if v.to == retry.StatusWait || v.to == retry.StatusSuccess {
					want = ""
				}
				same(h, "stop reason", t.StopReason, want)
				same(h, "last error", t.LastError, before.LastError)
				events := h.events(c.ID)
				e := events[len(events)-1]
				if e.From != from || e.To != v.to || e.Reason != v.reason || e.Actor != "ann" || e.Note != "because" || e.Attempt != before.Attempt {
					h.Errorf("journal from %s: %+v", from, e)
				}
				// Whoever had it or has it writes nothing more.
				if c.Token != "" {
					same(h, "late finish", h.end(c, retry.StatusFailed), false)
					kept, err := h.Store.Renew(h.ctx, time.Minute, []persistence.Claim{c})
					h.ok(err)
					same(h, "late renewals", len(kept), 0)
					same(h, "status", h.get(c.ID).Status, v.to)
				}
			}
		})
	}
	add("Operate/retry gives a new budget", func(h *harness) {
		id := h.insert(persistence.NewTask{Deadline: time.Hour})[0].ID
		h.end(h.take(id), retry.StatusWait)
		h.expireNow(h.take(id).ID)
		h.end(h.take(id), retry.StatusFailed)
		for range 2 { // the second retry gives no more than the first
			h.Shift(h, id, CreatedAt, -10*time.Hour)
			h.Shift(h, id, DeadlineAt, -10*time.Hour)
			t, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Retry, ID: id, Actor: "ann"})
			h.ok(err)
			same(h, "attempt", t.Attempt, 3)
			same(h, "uncharged", t.Uncharged, 3)
			same(h, "crashes", t.Crashes, 0)
			h.near("time left", t.DeadlineAt.Sub(t.NextAt), time.Hour)
			h.near("scan", t.DispatchAfter.Sub(t.NextAt), persistence.DispatchGap)
		}
		_, got := h.claim(id)
		same(h, "claimed", len(got), 1)
		same(h, "attempt", got[0].Attempt, 4)
		h.near("time left", got[0].Deadline-got[0].Elapsed, time.Hour)
	})
	add("Operate/retry makes a waiting task due", func(h *harness) {
		id := h.insert(persistence.NewTask{Delay: 60 * 24 * time.Hour})[0].ID
		_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Retry, ID: id, Actor: "ann"})
		h.ok(err)
		_, got := h.claim(id)
		same(h, "claimed", len(got), 1)
		same(h, "deadline", got[0].Deadline, 0)
	})
	add("Operate/retry of a task whose key has a new one", func(h *harness) {
		c := h.in(retry.StatusFailed)
		h.insert(persistence.NewTask{Key: h.get(c.ID).Key, Args: []byte("new"), ReuseKey: true})
		_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Retry, ID: c.ID, Actor: "ann"})
		h.is(err, retry.ErrKeyConflict)
		same(h, "status", h.get(c.ID).Status, retry.StatusFailed)
		same(h, "events", len(h.events(c.ID)), 0)
		// Ending it needs no key.
		_, err = h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Succeed, ID: c.ID, Actor: "ann"})
		h.ok(err)
	})
	add("Operate/retry takes a free key back", func(h *harness) {
		c := h.in(retry.StatusFailed)
		key := h.get(c.ID).Key
		newer := h.insert(persistence.NewTask{Key: key, ReuseKey: true})[0]
		h.end(h.take(newer.ID), retry.StatusSuccess)
		h.Shift(h, newer.ID, FinishedAt, -time.Hour)
		n, err := h.Store.Sweep(h.ctx, time.Minute, 10)
		h.ok(err)
		same(h, "swept", n, 1)
		_, err = h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Retry, ID: c.ID, Actor: "ann"})
		h.ok(err)
		same(h, "holder", h.insert(persistence.NewTask{Key: key})[0].ID, c.ID)
	})
	// Trap: a cancel is undone by what was in flight when it came.
	add("Operate/cancel is not undone by a reschedule in flight", func(h *harness) {
		c := h.held()
		h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		seen := h.expired()
		wake, err := h.Store.Redispatch(h.ctx, []int64{c.ID}, 0)
		h.ok(err)
		same(h, "wake-ups of a held task", len(wake), 0)
		_, err = h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: c.ID, Actor: "ann"})
		h.ok(err)
		same(h, "the worker's reschedule", h.end(c, retry.StatusWait), false)
		ids, err := h.Store.Expire(h.ctx, []persistence.Result{result(seen[0].Claim, retry.StatusWait)})
		h.ok(err)
		same(h, "the scan's", len(ids), 0)
		ids, err = h.Store.Release(h.ctx, []persistence.Claim{c})
		h.ok(err)
		same(h, "a release", len(ids), 0)
		_, err = h.Store.Redispatch(h.ctx, []int64{c.ID}, 0)
		h.ok(err)
		same(h, "claimed again", len(h.claimAs(c.Token, c.ID)), 0)
		t := h.get(c.ID)
		same(h, "status", t.Status, retry.StatusCancelled)
		same(h, "journal rows", len(h.events(c.ID)), 1)
	})
	add("Operate/what is wrong is named", func(h *harness) {
		id := h.add(1)[0]
		_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: "explode", ID: id, Actor: "ann"})
		h.is(err, retry.ErrInvalid)
		_, err = h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: id, Actor: " "})
		h.is(err, retry.ErrInvalid)
		_, err = h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: 1 << 40, Actor: "ann"})
		h.is(err, retry.ErrNotFound)
		_, err = h.Other.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: id, Actor: "ann"})
		h.is(err, retry.ErrNotFound)
		same(h, "status", h.get(id).Status, retry.StatusWait)
		_, err = h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: id, Actor: "a\x00n\xff", Note: strings.Repeat("n", 1<<20)})
		h.ok(err)
	})
}

// eventsBefore are the journal rows that h.in leaves.
func eventsBefore(s retry.Status) []struct{} {
	if s == retry.StatusCancelled {
		return make([]struct{}, 1)
	}
	return nil
}
