package storetest

import (
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func dispatchTests(add adder) {
	wakes := func(h *harness, ids ...int64) []persistence.Wake {
		h.Helper()
		return h.must(h.Store.Wakes(h.ctx, ids))
	}
	add("Undispatched/waiting tasks past their dispatch time, longest first", func(h *harness) {
		ids := h.add(4)
		h.add(1) // not past it yet
		held := h.held()
		for i, back := range []time.Duration{2, 4, 1, 3} {
			h.Shift(h, ids[i], DispatchAfter, -back*time.Hour)
		}
		h.Shift(h, held.ID, DispatchAfter, -time.Hour)
		got := h.must(h.Store.Undispatched(h.ctx, 10))
		if len(got) != 4 {
			h.Fatalf("found %d, want 4", len(got))
		}
		for i, want := range []int{1, 3, 0, 2} {
			same(h, "id", got[i].ID, ids[want])
			same(h, "scene", got[i].Scene, scene)
			same(h, "overdue", got[i].In <= 0, true)
		}
		same(h, "limited", len(h.must(h.Store.Undispatched(h.ctx, 2))), 2)
		other, err := h.Other.Undispatched(h.ctx, 10)
		h.ok(err)
		same(h, "found by another service", len(other), 0)
	})
	add("Dispatched/the gap grows and is bounded", func(h *harness) {
		id := h.add(1)[0]
		want := persistence.DispatchGap
		for n := range 8 {
			h.Shift(h, id, DispatchAfter, -24*time.Hour)
			w := h.undispatched()[id]
			h.ok(h.Store.Dispatched(h.ctx, []persistence.Wake{w}))
			t := h.get(id)
			gap := t.DispatchAfter.Sub(t.NextAt)
			if n == 0 || gap-want > time.Second {
				h.near("gap", gap, want)
			}
			want = min(2*want, persistence.MaxDispatchGap)
			same(h, "found at once", len(h.undispatched()), 0)
		}
		h.near("last gap", h.get(id).DispatchAfter.Sub(h.get(id).NextAt), persistence.MaxDispatchGap)
		// An attempt begins it anew.
		h.end(h.take(id), retry.StatusWait)
		h.Shift(h, id, DispatchAfter, -24*time.Hour)
		h.ok(h.Store.Dispatched(h.ctx, []persistence.Wake{h.undispatched()[id]}))
		t := h.get(id)
		h.near("gap after an attempt", t.DispatchAfter.Sub(t.NextAt), persistence.DispatchGap)
	})
	add("Dispatched/of a task that is not due yet counts from its time", func(h *harness) {
		id := h.insert(persistence.NewTask{Delay: 60 * 24 * time.Hour})[0].ID
		h.Shift(h, id, DispatchAfter, -60*24*time.Hour)
		h.ok(h.Store.Dispatched(h.ctx, []persistence.Wake{h.undispatched()[id]}))
		t := h.get(id)
		same(h, "gap", t.DispatchAfter.Sub(t.NextAt).Round(time.Millisecond), persistence.DispatchGap)
	})
	add("Dispatched/before the scan's time does not let the gap grow", func(h *harness) {
		id := h.insert(persistence.NewTask{Delay: time.Hour})[0].ID
		for range 3 {
			h.ok(h.Store.Dispatched(h.ctx, wakes(h, id)))
		}
		t := h.get(id)
		same(h, "gap", t.DispatchAfter.Sub(t.NextAt).Round(time.Millisecond), persistence.DispatchGap)
	})
	add("Dispatched/leaves what changed alone", func(h *harness) {
		ids := h.add(3)
		for _, id := range ids {
			h.Shift(h, id, DispatchAfter, -time.Hour)
		}
		found := h.must(h.Store.Undispatched(h.ctx, 10))
		h.take(ids[0])
		h.end(h.take(ids[1]), retry.StatusWait) // waits again, with times of its own
		before := h.get(ids[1])
		h.ok(h.Store.Dispatched(h.ctx, found))
		same(h, "status of the held", h.get(ids[0]).Status, retry.StatusExecuting)
		same(h, "dispatch time of the one that waits again", h.get(ids[1]).DispatchAfter, before.DispatchAfter)
		same(h, "left to find", len(h.undispatched()), 0)
		// The same answer once more, as after a lost connection: no second step of the gap.
		once := h.get(ids[2]).DispatchAfter
		h.ok(h.Store.Dispatched(h.ctx, found))
		same(h, "dispatch time", h.get(ids[2]).DispatchAfter, once)
		h.ok(h.Other.Dispatched(h.ctx, wakes(h, ids[2])))
		same(h, "dispatch time", h.get(ids[2]).DispatchAfter, once)
		h.ok(h.Store.Dispatched(h.ctx, nil))
	})
	add("Undelivered/the scan takes them once due", func(h *harness) {
		in := h.insert(persistence.NewTask{}, persistence.NewTask{Delay: 10 * time.Minute}, persistence.NewTask{Delay: 60 * 24 * time.Hour}, persistence.NewTask{})
		held := h.held()
		far := h.get(in[2].ID)
		h.ok(h.Store.Undelivered(h.ctx, []int64{in[2].ID, in[1].ID, in[0].ID, held.ID, 1 << 40}))
		found := h.undispatched()
		if _, ok := found[in[0].ID]; !ok || len(found) != 1 {
			h.Errorf("found %v, want only the due one", found)
		}
		later := h.get(in[1].ID)
		same(h, "dispatch time of a later one", later.DispatchAfter, later.NextAt)
		same(h, "dispatch time of a far one", h.get(in[2].ID).DispatchAfter, far.DispatchAfter)
		same(h, "status of a held one", h.get(held.ID).Status, retry.StatusExecuting)
		h.ok(h.Other.Undelivered(h.ctx, []int64{in[3].ID}))
		same(h, "found after another service's word", len(h.undispatched()), 1)
		h.ok(h.Store.Undelivered(h.ctx, nil))
	})
	add("Redispatch/puts the scan off behind the new wake-up", func(h *harness) {
		in := h.insert(persistence.NewTask{}, persistence.NewTask{Delay: time.Hour})
		held := h.held()
		due, later := in[0].ID, in[1].ID
		h.Shift(h, due, DispatchAfter, -time.Hour)
		got, err := h.Store.Redispatch(h.ctx, []int64{later, due, held.ID}, 5*time.Minute)
		h.ok(err)
		same(h, "still waiting", len(got), 2)
		t := h.get(due)
		h.near("scan of the due one", t.DispatchAfter.Sub(t.CreatedAt), 5*time.Minute+persistence.DispatchGap)
		u := h.get(later)
		same(h, "scan of the later one", u.DispatchAfter.Sub(u.NextAt), persistence.DispatchGap)
		same(h, "due time", t.NextAt, t.CreatedAt)
		same(h, "to scan", len(h.undispatched()), 0)
		_, claimed := h.claim(due)
		same(h, "claimable meanwhile", len(claimed), 1)
		none, err := h.Other.Redispatch(h.ctx, []int64{later}, 0)
		h.ok(err)
		same(h, "of another service", len(none), 0)
		none, err = h.Store.Redispatch(h.ctx, nil, 0)
		h.ok(err)
		same(h, "of none", len(none), 0)
	})
	add("Wakes/of those that wait", func(h *harness) {
		in := h.insert(persistence.NewTask{}, persistence.NewTask{Delay: time.Hour})
		held, done := h.held(), h.in(retry.StatusSuccess)
		got := wakes(h, in[0].ID, in[1].ID, held.ID, done.ID, 1<<40)
		same(h, "wakes", len(got), 2)
		for _, w := range got {
			want := time.Duration(0)
			if w.ID == in[1].ID {
				want = time.Hour
			}
			h.near("due in", w.In, want)
			same(h, "scene", w.Scene, scene)
		}
		other, err := h.Other.Wakes(h.ctx, []int64{in[0].ID})
		h.ok(err)
		same(h, "wakes of another service", len(other), 0)
		same(h, "wakes of none", len(wakes(h)), 0)
	})
}
