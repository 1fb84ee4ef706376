package storetest

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/persistence"
)

// wakesAre compares wake-ups and keeps them: what they saw is soon stale.
func (m *machine) wakesAre(t *rapid.T, got []persistence.Wake, tasks []*modelTask) {
	t.Helper()
	m.settle(t)
	want(t, "wake-ups", len(got), len(tasks))
	for _, task := range tasks {
		at := slices.IndexFunc(got, func(w persistence.Wake) bool { return w.ID == task.row.ID })
		if at < 0 {
			t.Fatalf("no wake-up of task %d", task.row.ID)
		}
		w := got[at]
		want(t, "scene", w.Scene, task.row.Scene)
		want(t, "seen", w.Seen.Equal(task.row.DispatchAfter), true)
		m.within(t, "due in", w.In, task.row.NextAt.Sub(m.now.to), task.row.NextAt.Sub(m.now.from))
	}
	m.wakes = append(m.wakes, got...)
}

func (m *machine) findWakes(t *rapid.T) {
	some := ids(m.pick(t, waits))
	var got []persistence.Wake
	m.call(t, func(s persistence.Store) (err error) {
		got, err = s.Wakes(m.h.ctx, some)
		return err
	})
	m.wakesAre(t, got, m.waiting(some))
}

func (m *machine) undispatched(t *rapid.T) {
	var got []persistence.Wake
	m.call(t, func(s persistence.Store) (err error) {
		got, err = s.Undispatched(m.h.ctx, 100)
		return err
	})
	want(t, "longest first", slices.IsSortedFunc(got, func(a, b persistence.Wake) int { return a.Seen.Compare(b.Seen) }), true)
	m.wakesAre(t, got, m.model.undispatched())
}

func (m *machine) redispatch(t *rapid.T) {
	some := ids(m.pick(t, waits))
	d := rapid.SampledFrom([]time.Duration{0, soon}).Draw(t, "in")
	var got []persistence.Wake
	m.call(t, func(s persistence.Store) (err error) {
		got, err = s.Redispatch(m.h.ctx, some, d)
		return err
	})
	m.wakesAre(t, got, m.model.redispatch(some, d))
}

func (m *machine) undelivered(t *rapid.T) {
	some := ids(m.pick(t, waits))
	m.call(t, func(s persistence.Store) error { return s.Undelivered(m.h.ctx, some) })
	m.model.undelivered(some)
	m.settle(t)
}

func (m *machine) dispatched(t *rapid.T) {
	if len(m.wakes) == 0 {
		t.Skip("nothing was found")
	}
	var some []persistence.Wake
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(m.wakes)-1), 1, 3).Draw(t, "wakes") {
		w := m.wakes[i]
		if !slices.ContainsFunc(some, func(s persistence.Wake) bool { return s.ID == w.ID }) {
			some = append(some, w)
		}
	}
	m.call(t, func(s persistence.Store) error { return s.Dispatched(m.h.ctx, some) })
	for _, w := range some {
		m.model.dispatched(w)
	}
	m.settle(t)
}
