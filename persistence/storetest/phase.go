package storetest

import (
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func phaseTests(add adder) {
	place := func(h *harness, id int64, phase retry.Phase, tries int) {
		h.Helper()
		t := h.get(id)
		same(h, "phase", t.Phase, phase)
		same(h, "tries", t.Tries, tries)
	}
	step := func(c persistence.Claim, to retry.Phase) persistence.Step {
		return persistence.Step{Claim: c, Phase: to, Event: persistence.Event{Reason: retry.ReasonExecuted, Actor: "worker", Note: "a note"}}
	}
	advance := func(h *harness, s persistence.Step) bool {
		h.Helper()
		held, err := h.Store.Advance(h.ctx, s)
		h.ok(err)
		return held
	}
	add("Phase/of a new task", func(h *harness) {
		in := h.insert(persistence.NewTask{Scene: "a"}, persistence.NewTask{Scene: "a", Phase: retry.PhaseQuery})
		place(h, in[0].ID, retry.PhaseExecute, 0)
		place(h, in[1].ID, retry.PhaseQuery, 0)
		_, err := h.Store.Insert(h.ctx, []persistence.NewTask{{Scene: "a", Phase: "begin"}})
		h.is(err, retry.ErrInvalid)
	})
	add("Phase/of a result", func(h *harness) {
		c := h.held()
		r := result(c, retry.StatusWait)
		r.Phase, r.Tries, r.Idle = retry.PhaseQuery, 3, true
		r.Event = &persistence.Event{Actor: "worker"}
		h.finish(r)
		place(h, c.ID, retry.PhaseQuery, 3)
		same(h, "uncharged", h.get(c.ID).Uncharged, 1)
		same(h, "the journal's phase", h.events(c.ID)[0].Phase, retry.PhaseQuery)
		_, got := h.claim(c.ID)
		same(h, "phase in the claim", got[0].Phase, retry.PhaseQuery)
		same(h, "tries in the claim", got[0].Tries, 3)
		h.finish(result(persistence.Claim{ID: c.ID, Token: got[0].ClaimToken}, retry.StatusWait))
		place(h, c.ID, retry.PhaseExecute, 0)
		same(h, "uncharged", h.get(c.ID).Uncharged, 1)
		c = h.held()
		r = result(c, retry.StatusWait)
		r.Phase = "over"
		_, err := h.Store.Finish(h.ctx, []persistence.Result{r})
		h.is(err, retry.ErrInvalid)
	})
	add("Phase/a step in the middle of an attempt", func(h *harness) {
		c := h.held()
		same(h, "held", advance(h, step(c, retry.PhaseCallback)), true)
		t := h.get(c.ID)
		same(h, "status", t.Status, retry.StatusExecuting)
		same(h, "unknown", t.Unknown, false)
		place(h, c.ID, retry.PhaseCallback, 0)
		// Again, as the driver might: once in the journal.
		same(h, "held", advance(h, step(c, retry.PhaseCallback)), true)
		events := h.events(c.ID)
		if len(events) != 1 {
			h.Fatalf("%d events, want 1", len(events))
		}
		e := events[0]
		if e.Attempt != 1 || e.From != retry.StatusExecuting || e.To != retry.StatusExecuting || e.Reason != retry.ReasonExecuted || e.Actor != "worker" || e.Note != "a note" || e.Phase != retry.PhaseCallback {
			h.Errorf("event came back as %+v", e)
		}
		// The claim goes on as before.
		h.end(c, retry.StatusSuccess)
	})
	add("Phase/a step of a lost claim", func(h *harness) {
		c := h.held()
		stale := persistence.Claim{ID: c.ID, Token: uuid.NewString()}
		same(h, "held by a stale token", advance(h, step(stale, retry.PhaseCallback)), false)
		h.end(c, retry.StatusWait)
		same(h, "held after the end", advance(h, step(c, retry.PhaseCallback)), false)
		place(h, c.ID, retry.PhaseExecute, 0)
		same(h, "events", len(h.events(c.ID)), 0)
		_, err := h.Store.Advance(h.ctx, step(c, "over"))
		h.is(err, retry.ErrInvalid)
	})
	add("Phase/a word of Query clears unknown", func(h *harness) {
		c := h.held()
		r := result(c, retry.StatusWait)
		r.Phase, r.Tries, r.Unknown = retry.PhaseQuery, 2, true
		h.finish(r)
		c = h.take(c.ID)
		same(h, "held", advance(h, step(c, retry.PhaseExecute)), true)
		place(h, c.ID, retry.PhaseExecute, 0)
		same(h, "unknown", h.get(c.ID).Unknown, false)
	})
	add("Phase/a released claim keeps it", func(h *harness) {
		c := h.held()
		advance(h, step(c, retry.PhaseCallback))
		_, err := h.Store.Release(h.ctx, []persistence.Claim{c})
		h.ok(err)
		place(h, c.ID, retry.PhaseCallback, 0)
	})
	add("Phase/of an expired claim", func(h *harness) {
		c := h.held()
		r := result(c, retry.StatusWait)
		r.Phase, r.Tries = retry.PhaseCallback, 2
		h.finish(r)
		c = h.take(c.ID)
		h.Shift(h, c.ID, LeaseUntil, -time.Hour)
		got := h.expired()
		if len(got) != 1 || got[0].Phase != retry.PhaseCallback || got[0].Tries != 2 {
			h.Fatalf("got %+v", got)
		}
		r = result(c, retry.StatusWait)
		r.Phase, r.Tries = retry.PhaseCallback, 2
		ids, err := h.Store.Expire(h.ctx, []persistence.Result{r})
		h.ok(err)
		same(h, "expired", len(ids), 1)
		place(h, c.ID, retry.PhaseCallback, 2)
	})
	add("Phase/a person's word", func(h *harness) {
		c := h.held()
		r := result(c, retry.StatusManualReview)
		r.Phase, r.Tries, r.Unknown = retry.PhaseQuery, 4, true
		h.finish(r)
		act := func(phase retry.Phase) error {
			_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Retry, ID: c.ID, Actor: "ada", Phase: phase})
			return err
		}
		h.is(act("over"), retry.ErrInvalid)
		h.ok(act(""))
		place(h, c.ID, retry.PhaseQuery, 0)
		same(h, "unknown", h.get(c.ID).Unknown, true)
		h.ok(act(retry.PhaseExecute))
		place(h, c.ID, retry.PhaseExecute, 0)
		same(h, "unknown", h.get(c.ID).Unknown, false)
		h.ok(act(retry.PhaseCallback))
		place(h, c.ID, retry.PhaseCallback, 0)
		events := h.events(c.ID)
		same(h, "the journal's phase", events[len(events)-1].Phase, retry.PhaseCallback)
		_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: c.ID, Actor: "ada", Phase: retry.PhaseExecute})
		h.is(err, retry.ErrInvalid)
	})
}
