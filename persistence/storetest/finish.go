package storetest

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func finishTests(add adder) {
	add("Finish/every outcome", func(h *harness) {
		for _, s := range []retry.Status{retry.StatusWait, retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview} {
			c := h.held()
			r := result(c, s)
			r.Delay = 90 * time.Second
			same(h, "applied", h.finish(r)[0].Applied, true)
			t := h.get(c.ID)
			same(h, "status", t.Status, s)
			same(h, "last error", t.LastError, r.Error)
			same(h, "last class", t.LastClass, r.Class)
			same(h, "unknown", t.Unknown, r.Unknown)
			same(h, "finished", t.FinishedAt != nil, s.Terminal())
			same(h, "attempt", t.Attempt, 1)
			if t.LeaseUntil != nil {
				h.Errorf("a task in %s has a lease", s)
			}
			want := r.Reason
			if s == retry.StatusWait || s == retry.StatusSuccess {
				want = ""
			}
			same(h, "stop reason", t.StopReason, want)
			if s == retry.StatusWait {
				h.near("due", t.NextAt.Sub(t.CreatedAt), 90*time.Second)
				same(h, "scan after due", t.DispatchAfter.Sub(t.NextAt).Round(time.Millisecond), persistence.DispatchGap)
			}
		}
	})
	add("Finish/two of one task are refused", func(h *harness) {
		c, between := h.held(), h.held()
		stale := persistence.Claim{ID: c.ID, Token: uuid.NewString()}
		for _, claims := range [][]persistence.Claim{{stale, c}, {stale, between, c}} {
			var results []persistence.Result
			for _, c := range claims {
				results = append(results, result(c, retry.StatusFailed))
			}
			_, err := h.Store.Finish(h.ctx, results)
			h.is(err, retry.ErrInvalid)
			same(h, "status", h.get(c.ID).Status, retry.StatusExecuting)
			same(h, "status of the one between", h.get(between.ID).Status, retry.StatusExecuting)
		}
	})
	add("Finish/an error stays until the next", func(h *harness) {
		c := h.held()
		h.end(c, retry.StatusWait)
		c = h.take(c.ID)
		h.end(c, retry.StatusSuccess)
		t := h.get(c.ID)
		same(h, "last error", t.LastError, "later")
		same(h, "last class", t.LastClass, retry.ClassTransient)
		same(h, "unknown", t.Unknown, false)
	})
	add("Finish/unknown is of the last attempt", func(h *harness) {
		c := h.held()
		r := result(c, retry.StatusWait)
		r.Unknown = true
		h.finish(r)
		same(h, "unknown", h.get(c.ID).Unknown, true)
		_, got := h.claim(c.ID)
		same(h, "unknown in the claim", got[0].Unknown, true)
		h.finish(result(persistence.Claim{ID: c.ID, Token: got[0].ClaimToken}, retry.StatusWait))
		same(h, "unknown", h.get(c.ID).Unknown, false)
	})
	add("Finish/beyond the horizon", func(h *harness) {
		c := h.held()
		r := result(c, retry.StatusWait)
		r.Delay = 60 * 24 * time.Hour
		same(h, "far", h.finish(r)[0].Far, true)
		t := h.get(c.ID)
		lead := t.NextAt.Sub(t.DispatchAfter)
		if lead <= h.Horizon/2 || lead > h.Horizon {
			h.Errorf("dispatched %v before it is due, want nearly the horizon", lead)
		}
		if _, got := h.claim(c.ID); len(got) != 0 {
			h.Error("claimed 60 days early")
		}
		c = h.held()
		r = result(c, retry.StatusWait)
		r.Delay = h.Horizon
		same(h, "far", h.finish(r)[0].Far, false)
	})
	add("Finish/journal with facts and decision", func(h *harness) {
		c := h.held()
		facts := &retry.Facts{TaskID: c.ID, Attempt: 1, Uncharged: 2, Crashes: 1, Elapsed: time.Hour + 1, Deadline: 2 * time.Hour, Class: retry.ClassTransient, RetryAfter: time.Minute}
		decision := &retry.Decision{Status: retry.StatusWait, Reason: retry.ReasonScheduleRetry, Delay: time.Minute, Ceiling: time.Second, Jittered: 700 * time.Millisecond, RetryAfter: time.Minute}
		r := result(c, retry.StatusWait)
		r.Event = &persistence.Event{Actor: "worker", Note: "a note", PolicyVersion: 7, Facts: facts, Decision: decision}
		h.finish(r)
		events := h.events(c.ID)
		if len(events) != 1 {
			h.Fatalf("%d events, want 1", len(events))
		}
		e := events[0]
		if e.Attempt != 1 || e.From != retry.StatusExecuting || e.To != retry.StatusWait || e.Reason != r.Reason || e.Class != r.Class || e.Error != r.Error ||
			e.Actor != "worker" || e.Note != "a note" || e.PolicyVersion != 7 {
			h.Errorf("event came back as %+v", e)
		}
		if e.Facts == nil || *e.Facts != *facts || e.Decision == nil || *e.Decision != *decision {
			h.Errorf("facts and decision came back as %+v, %+v", e.Facts, e.Decision)
		}
		// The decision can be recomputed from what was written.
		c = h.take2(c.ID)
		h.end(c, retry.StatusSuccess)
		same(h, "events without one", len(h.events(c.ID)), 1)
	})
	add("Finish/a batch of all kinds", func(h *harness) {
		a, b, lost, d := h.held(), h.held(), h.held(), h.held()
		lost.Token = uuid.NewString()
		with := result(b, retry.StatusFailed)
		with.Event = &persistence.Event{Actor: "w"}
		losing := result(lost, retry.StatusFailed)
		losing.Event = &persistence.Event{Actor: "w"}
		got := h.finish(result(d, retry.StatusWait), losing, result(a, retry.StatusSuccess), with)
		for i, want := range []bool{true, false, true, true} {
			same(h, "applied", got[i].Applied, want)
		}
		same(h, "events of the one with", len(h.events(b.ID)), 1)
		same(h, "events of the lost one", len(h.events(lost.ID)), 0)
		same(h, "status of the lost one", h.get(lost.ID).Status, retry.StatusExecuting)
	})
	add("Finish/twice is recognised and written once", func(h *harness) {
		for _, s := range []retry.Status{retry.StatusWait, retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview} {
			c := h.held()
			r := result(c, s)
			r.Event = &persistence.Event{Actor: "w"}
			same(h, "applied", h.finish(r)[0].Applied, true)
			before := h.get(c.ID)
			same(h, "applied before", h.finish(r)[0].Applied, true)
			same(h, "events", len(h.events(c.ID)), 1)
			same(h, "due", h.get(c.ID).NextAt, before.NextAt)
		}
	})
	add("Finish/a lost claim writes nothing", func(h *harness) {
		stale, expired, expiredTaken, released := h.held(), h.held(), h.held(), h.held()
		real := stale
		stale.Token = uuid.NewString()
		h.expireNow(expired.ID)
		h.expireNow(expiredTaken.ID)
		newer := h.take(expiredTaken.ID)
		_, err := h.Store.Release(h.ctx, []persistence.Claim{released})
		h.ok(err)
		empty := persistence.Claim{ID: released.ID}
		for _, c := range []persistence.Claim{stale, expired, expiredTaken, released, empty, {ID: 1 << 40, Token: uuid.NewString()}} {
			for _, s := range []retry.Status{retry.StatusWait, retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview} {
				r := result(c, s)
				r.Event = &persistence.Event{Actor: "loser"}
				same(h, "applied", h.finish(r)[0].Applied, false)
			}
		}
		for _, c := range []persistence.Claim{stale, expired, expiredTaken, released} {
			for _, e := range h.events(c.ID) {
				if e.Actor == "loser" {
					h.Errorf("a lost claim wrote %+v", e)
				}
			}
		}
		same(h, "the claim's own finish", h.end(real, retry.StatusSuccess), true)
		same(h, "the newer claim's finish", h.end(newer, retry.StatusSuccess), true)
	})
	add("Finish/a claim that ran out but was not taken still counts", func(h *harness) {
		c := h.held()
		h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		same(h, "applied", h.end(c, retry.StatusSuccess), true)
		same(h, "expired", len(h.expired()), 0)
	})
	add("Finish/error texts are cut and cleaned", func(h *harness) {
		long, dirty := h.held(), h.held()
		a, b := result(long, retry.StatusWait), result(dirty, retry.StatusWait)
		a.Error, b.Error = strings.Repeat("é", 1<<19), "a\x00b\xffc"
		a.Event, b.Event = &persistence.Event{}, &persistence.Event{Note: "\x00n\xff"}
		for _, f := range h.finish(a, b) {
			same(h, "applied", f.Applied, true)
		}
		got := h.get(long.ID).LastError
		if len(got) > persistence.MaxErrorLen+64 || !strings.HasSuffix(got, "…[cut, 1048576 bytes]") {
			h.Errorf("an error of 1 MB is stored with %d bytes: …%s", len(got), got[max(0, len(got)-40):])
		}
		same(h, "error in the journal", h.events(long.ID)[0].Error, got)
		same(h, "cleaned error", h.get(dirty.ID).LastError, "ab\uFFFDc")
		same(h, "cleaned note", h.events(dirty.ID)[0].Note, "n\uFFFD")
		same(h, "wake-ups", len(h.must(h.Store.Wakes(h.ctx, []int64{long.ID, dirty.ID}))), 2)
	})
	add("Finish/states that are no outcome", func(h *harness) {
		for _, s := range []retry.Status{retry.StatusInit, retry.StatusExecuting, retry.StatusCancelled, "", "DONE"} {
			c := h.held()
			_, err := h.Store.Finish(h.ctx, []persistence.Result{{Claim: c, Status: s}})
			h.is(err, retry.ErrInvalid)
			same(h, "status", h.get(c.ID).Status, retry.StatusExecuting)
		}
		none, err := h.Store.Finish(h.ctx, nil)
		h.ok(err)
		same(h, "answers to nothing", len(none), 0)
	})
	add("Finish/a batch of 1000", func(h *harness) {
		ids := h.add(1000)
		token, got := h.claim(ids...)
		same(h, "claimed", len(got), 1000)
		var results []persistence.Result
		for _, id := range ids {
			r := result(persistence.Claim{ID: id, Token: token}, retry.StatusSuccess)
			r.Event = &persistence.Event{Actor: "w"}
			results = append(results, r)
		}
		for _, f := range h.finish(results...) {
			same(h, "applied", f.Applied, true)
		}
		counts, err := h.Store.Count(h.ctx)
		h.ok(err)
		if len(counts) != 1 || counts[0].Tasks != 1000 || counts[0].Status != retry.StatusSuccess {
			h.Errorf("counts are %+v", counts)
		}
	})
}

// take2 makes a waiting task due and claims it.
func (h *harness) take2(id int64) persistence.Claim {
	h.Helper()
	h.Shift(h, id, NextAt, -365*24*time.Hour)
	return h.take(id)
}

func (h *harness) must(w []persistence.Wake, err error) []persistence.Wake {
	h.Helper()
	h.ok(err)
	return w
}

func expireTests(add adder) {
	expire := func(h *harness, r ...persistence.Result) []int64 {
		h.Helper()
		ids, err := h.Store.Expire(h.ctx, r)
		h.ok(err)
		return ids
	}
	add("Expired/what is found", func(h *harness) {
		in := h.insert(persistence.NewTask{Deadline: 2 * time.Hour}, persistence.NewTask{}, persistence.NewTask{}, persistence.NewTask{Scene: "scene.b"})
		c := h.take(in[0].ID)
		byHand := h.take(in[1].ID)
		h.take(in[2].ID) // still valid
		_, err := h.Store.Claim(h.ctx, persistence.ClaimRequest{IDs: []int64{in[3].ID}, Scenes: []string{"scene.b"}, Token: uuid.NewString(), Lease: time.Minute})
		h.ok(err)
		h.Shift(h, in[3].ID, LeaseUntil, -time.Hour) // of a scene that was not asked for
		h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		h.Shift(h, c.ID, CreatedAt, -time.Hour)
		h.DropLease(h, byHand.ID)
		foreign, err := h.Other.Insert(h.ctx, []persistence.NewTask{{Scene: scene}})
		h.ok(err)
		_, err = h.Other.Claim(h.ctx, persistence.ClaimRequest{IDs: []int64{foreign[0].ID}, Scenes: []string{scene}, Token: uuid.NewString(), Lease: time.Minute})
		h.ok(err)
		h.Shift(h, foreign[0].ID, LeaseUntil, -time.Hour)

		got := h.expired()
		if len(got) != 2 {
			h.Fatalf("found %+v, want two", got)
		}
		e := got[0]
		same(h, "claim", e.Claim, c)
		same(h, "scene", e.Scene, scene)
		same(h, "status", e.Status, retry.StatusExecuting)
		same(h, "attempt", e.Attempt, 1)
		same(h, "crashes", e.Crashes, 0)
		same(h, "holder", e.ClaimedBy, "worker")
		h.near("elapsed", e.Elapsed, time.Hour)
		h.near("deadline", e.Deadline, 3*time.Hour)
		h.near("lease ended", e.LeaseEnded, 59*time.Minute)
		same(h, "the one without a lease", got[1].Claim, byHand)
		same(h, "its lease's end", got[1].LeaseEnded, 0)
	})
	add("Expired/by pages", func(h *harness) {
		ids := h.add(5)
		h.claim(ids...)
		for _, id := range ids {
			h.Shift(h, id, LeaseUntil, -time.Hour)
		}
		var seen []int64
		for after := int64(0); ; {
			page, err := h.Store.Expired(h.ctx, []string{scene}, after, 2)
			h.ok(err)
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				if e.ID <= after {
					h.Fatalf("page after %d holds %d", after, e.ID)
				}
				after = e.ID
				seen = append(seen, e.ID)
			}
		}
		same(h, "found", len(seen), 5)
		none, err := h.Store.Expired(h.ctx, nil, 0, 10)
		h.ok(err)
		same(h, "found of no scene", len(none), 0)
	})
	add("Expire/counts a crash", func(h *harness) {
		c := h.held()
		for n := 1; n <= 2; n++ {
			h.Shift(h, c.ID, LeaseUntil, -time.Hour)
			r := persistence.Result{Claim: c, Status: retry.StatusWait, Reason: retry.ReasonScheduleRetry, Delay: time.Minute, Class: retry.ClassUnknown, Error: "lease ran out", Unknown: true,
				Event: &persistence.Event{From: retry.StatusExecuting, Actor: "reaper", Facts: &retry.Facts{Crashed: true, Crashes: n}}}
			same(h, "expired", len(expire(h, r)), 1)
			t := h.get(c.ID)
			same(h, "status", t.Status, retry.StatusWait)
			same(h, "crashes", t.Crashes, n)
			same(h, "uncharged", t.Uncharged, n)
			same(h, "attempt", t.Attempt, n)
			same(h, "unknown", t.Unknown, true)
			events := h.events(c.ID)
			same(h, "events", len(events), n)
			same(h, "from", events[n-1].From, retry.StatusExecuting)
			same(h, "attempt in the journal", events[n-1].Attempt, n)
			same(h, "expired again", len(expire(h, r)), 0)
			c = h.take2(c.ID)
		}
	})
	add("Expire/to a person", func(h *harness) {
		c := h.held()
		h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		expire(h, persistence.Result{Claim: c, Status: retry.StatusManualReview, Reason: retry.ReasonCrashLoop, Unknown: true})
		t := h.get(c.ID)
		same(h, "status", t.Status, retry.StatusManualReview)
		same(h, "stop reason", t.StopReason, retry.ReasonCrashLoop)
		same(h, "crashes", t.Crashes, 1)
	})
	add("Expire/checks again what was seen", func(h *harness) {
		renewed, finished, acted, over, byHand := h.held(), h.held(), h.held(), h.held(), h.held()
		all := []persistence.Claim{renewed, finished, acted, over}
		for _, c := range all {
			h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		}
		h.DropLease(h, byHand.ID)
		all = append(all, byHand)
		same(h, "found", len(h.expired()), 5)
		_, err := h.Store.Renew(h.ctx, time.Minute, []persistence.Claim{renewed})
		h.ok(err)
		h.end(finished, retry.StatusWait)
		h.take2(finished.ID) // and claimed by another, whose lease runs
		_, err = h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: acted.ID, Actor: "ann"})
		h.ok(err)
		var results []persistence.Result
		for _, c := range all {
			results = append(results, persistence.Result{Claim: c, Status: retry.StatusWait, Reason: retry.ReasonScheduleRetry, Event: &persistence.Event{Actor: "reaper"}})
		}
		got := expire(h, results...)
		if len(got) != 2 || got[0] != over.ID || got[1] != byHand.ID {
			h.Errorf("expired %v, want %v", got, []int64{over.ID, byHand.ID})
		}
		same(h, "status of the renewed", h.get(renewed.ID).Status, retry.StatusExecuting)
		same(h, "crashes of the renewed", h.get(renewed.ID).Crashes, 0)
		same(h, "status of the cancelled", h.get(acted.ID).Status, retry.StatusCancelled)
		same(h, "events of the renewed", len(h.events(renewed.ID)), 0)
		same(h, "the renewed one's finish", h.end(renewed, retry.StatusSuccess), true)
	})
	// Trap: a lease that is NULL, by whoever's hand, never ends.
	add("Expire/a lease that is NULL by hand counts as expired", func(h *harness) {
		consumers := h.held()
		token := uuid.NewString()
		in := h.insert(persistence.NewTask{Status: retry.StatusInit, Lease: time.Hour, Token: token})[0]
		publishers := persistence.Claim{ID: in.ID, Token: token}
		for _, c := range []persistence.Claim{consumers, publishers} {
			h.DropLease(h, c.ID)
			found := h.expired()
			if len(found) != 1 || found[0].Claim != c {
				h.Fatalf("found %+v, want task %d", found, c.ID)
			}
			same(h, "expired", len(expire(h, result(c, retry.StatusWait))), 1)
			same(h, "status", h.get(c.ID).Status, retry.StatusWait)
			same(h, "late finish", h.end(c, retry.StatusSuccess), false)
		}
	})
	add("Expire/leaves other services alone", func(h *harness) {
		c := h.held()
		h.DropLease(h, c.ID)
		ids, err := h.Other.Expire(h.ctx, []persistence.Result{{Claim: c, Status: retry.StatusWait}})
		h.ok(err)
		same(h, "expired", len(ids), 0)
		none, err := h.Store.Expire(h.ctx, nil)
		h.ok(err)
		same(h, "expired of none", len(none), 0)
	})
}
