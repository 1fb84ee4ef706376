package storetest

import (
	"sync"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func upkeepTests(add adder) {
	add("Sweep/only what ended long ago, with its journal", func(h *harness) {
		old := map[retry.Status]persistence.Claim{}
		for _, s := range []retry.Status{retry.StatusSuccess, retry.StatusFailed, retry.StatusCancelled} {
			c := h.held()
			if s == retry.StatusCancelled {
				_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: c.ID, Actor: "ann"})
				h.ok(err)
			} else {
				r := result(c, s)
				r.Event = &persistence.Event{Actor: "w"}
				h.finish(r)
			}
			same(h, "events", len(h.events(c.ID)), 1)
			h.Shift(h, c.ID, FinishedAt, -2*time.Hour)
			old[s] = c
		}
		var kept []persistence.Claim
		for _, s := range []retry.Status{retry.StatusWait, retry.StatusExecuting, retry.StatusManualReview, retry.StatusSuccess} {
			c := h.in(s)
			h.Shift(h, c.ID, CreatedAt, -100*time.Hour)
			h.Shift(h, c.ID, NextAt, -100*time.Hour)
			kept = append(kept, c)
		}
		// A person's hand on a task that would go.
		back := h.in(retry.StatusFailed)
		h.Shift(h, back.ID, FinishedAt, -2*time.Hour)
		_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Retry, ID: back.ID, Actor: "ann"})
		h.ok(err)
		kept = append(kept, back)
		n, err := h.Other.Sweep(h.ctx, time.Hour, 100)
		h.ok(err)
		same(h, "swept by another service", n, 0)
		n, err = h.Store.Sweep(h.ctx, time.Hour, 2)
		h.ok(err)
		same(h, "swept at most", n, 2)
		n, err = h.Store.Sweep(h.ctx, time.Hour, 100)
		h.ok(err)
		same(h, "swept then", n, 1)
		for s, c := range old {
			if _, err := h.Store.Get(h.ctx, c.ID); err == nil {
				h.Errorf("the old task in %s is still there", s)
			}
			same(h, "journal of what went", len(h.events(c.ID)), 0)
		}
		for _, c := range kept {
			h.get(c.ID)
		}
		same(h, "journal of what stays", len(h.events(back.ID)), 1)
		n, err = h.Store.Sweep(h.ctx, time.Hour, 100)
		h.ok(err)
		same(h, "swept at last", n, 0)
	})
	add("Sweep/old workflow deadlines", func(h *harness) {
		h.insert(persistence.NewTask{Workflow: "w", Deadline: time.Hour})
		h.ShiftWorkflow(h, "w", -3*time.Hour)
		_, err := h.Store.Sweep(h.ctx, 4*time.Hour, 10)
		h.ok(err)
		in := h.insert(persistence.NewTask{Workflow: "w", Deadline: time.Hour})[0]
		h.near("deadline that is kept", h.get(in.ID).DeadlineAt.Sub(h.get(in.ID).CreatedAt), -2*time.Hour)
		_, err = h.Store.Sweep(h.ctx, time.Hour, 10)
		h.ok(err)
		in = h.insert(persistence.NewTask{Workflow: "w", Deadline: time.Hour})[0]
		h.near("new deadline", h.get(in.ID).DeadlineAt.Sub(h.get(in.ID).CreatedAt), time.Hour)
	})
	add("Lead/one holder, growing epochs", func(h *harness) {
		lead := func(s persistence.Store, who string, ttl time.Duration) (int64, bool) {
			h.Helper()
			e, ok, err := s.Lead(h.ctx, who, ttl)
			h.ok(err)
			return e, ok
		}
		first, ok := lead(h.Store, "a", time.Hour)
		same(h, "a leads", ok, true)
		_, ok = lead(h.Store, "b", time.Hour)
		same(h, "b leads", ok, false)
		e, ok := lead(h.Store, "a", time.Hour)
		same(h, "a leads on", ok, true)
		same(h, "epoch", e, first)
		_, ok = lead(h.Other, "b", time.Hour)
		same(h, "b leads elsewhere", ok, true)
		h.ok(h.Store.Resign(h.ctx, "b")) // it has nothing to give up
		_, ok = lead(h.Store, "b", time.Hour)
		same(h, "b leads after its own resignation", ok, false)
		h.ok(h.Store.Resign(h.ctx, "a"))
		second, ok := lead(h.Store, "b", -time.Second) // over at once
		same(h, "b leads after a's resignation", ok, true)
		same(h, "epoch grew", second > first, true)
		third, ok := lead(h.Store, "a", time.Hour)
		same(h, "a leads after b's lease", ok, true)
		same(h, "epoch grew", third > second, true)
	})
	add("Lead/of many at once one wins", func(h *harness) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := map[string]int64{}
		for i := range 8 {
			wg.Go(func() {
				who := string(rune('a' + i))
				e, ok, err := h.Store.Lead(h.ctx, who, time.Hour)
				if err != nil {
					h.Errorf("lead: %v", err)
				}
				if ok {
					mu.Lock()
					defer mu.Unlock()
					won[who] = e
				}
			})
		}
		wg.Wait()
		same(h, "winners", len(won), 1)
	})

	rules := func(n int) retry.Rules {
		return retry.Rules{Policy: retry.Policy{MaxAttempts: n}, Unknown: retry.UnknownRepeat, Grid: retry.Grid{Unit: 100 * time.Millisecond, SignificantBits: 5}}
	}
	save := func(h *harness, s persistence.Store, scene string, r retry.Rules) int {
		h.Helper()
		v, err := s.SavePolicy(h.ctx, scene, r)
		h.ok(err)
		return v
	}
	add("SavePolicy/a version for each change", func(h *harness) {
		one := save(h, h.Store, scene, rules(1))
		same(h, "first version", one, 1)
		same(h, "unchanged", save(h, h.Store, scene, rules(1)), one)
		two := save(h, h.Store, scene, rules(2))
		same(h, "changed", two, 2)
		same(h, "unchanged", save(h, h.Store, scene, rules(2)), two)
		same(h, "back again is a change", save(h, h.Store, scene, rules(1)), 3)
		same(h, "another scene", save(h, h.Store, "scene.b", rules(1)), 1)
		same(h, "another service", save(h, h.Other, scene, rules(9)), 1)
		for v, n := range map[int]int{1: 1, 2: 2, 3: 1} {
			r, err := h.Store.Policy(h.ctx, scene, v)
			h.ok(err)
			same(h, "attempts", r.Policy.MaxAttempts, n)
			same(h, "unknown", r.Unknown, retry.UnknownRepeat)
			same(h, "grid", r.Grid, rules(n).Grid)
		}
		_, err := h.Store.Policy(h.ctx, scene, 4)
		h.is(err, retry.ErrNotFound)
		_, err = h.Store.Policy(h.ctx, "none", 1)
		h.is(err, retry.ErrNotFound)
	})
	add("SavePolicy/many at once agree", func(h *harness) {
		var wg sync.WaitGroup
		got := make([]int, 16)
		for i := range got {
			wg.Go(func() {
				v, err := h.Store.SavePolicy(h.ctx, scene, rules(1+i%2))
				if err != nil {
					h.Errorf("save: %v", err)
				}
				got[i] = v
			})
		}
		wg.Wait()
		for i, v := range got {
			r, err := h.Store.Policy(h.ctx, scene, v)
			h.ok(err)
			same(h, "attempts of the version", r.Policy.MaxAttempts, 1+i%2)
		}
		// The same rules at once are one version.
		clear(got)
		for i := range got {
			wg.Go(func() {
				v, err := h.Store.SavePolicy(h.ctx, "scene.b", rules(3))
				if err != nil {
					h.Errorf("save: %v", err)
				}
				got[i] = v
			})
		}
		wg.Wait()
		for _, v := range got {
			same(h, "version", v, 1)
		}
	})
}
