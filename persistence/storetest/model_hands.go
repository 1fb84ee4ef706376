package storetest

import (
	"errors"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func (m *machine) operate(t *rapid.T) {
	a := persistence.Action{Actor: "ann", Note: "because",
		Verb: rapid.SampledFrom([]persistence.Verb{persistence.Retry, persistence.Retry, persistence.Succeed, persistence.Fail, persistence.Cancel}).Draw(t, "verb")}
	about := anyTask
	if a.Verb == persistence.Retry {
		about = hasPast
	}
	a.ID = m.pick(t, about)[0].row.ID
	var got retry.Task
	var err error
	m.call(t, func(s persistence.Store) error {
		got, err = s.Operate(m.h.ctx, a)
		return nil
	})
	wanted := m.model.operate(a)
	if (err == nil) != (wanted == nil) || !errors.Is(err, wanted) {
		t.Fatalf("%s: %v, want %v", a.Verb, err, wanted)
	}
	m.settle(t)
	if err == nil {
		for _, wrong := range differences(m.find(a.ID).row, got) {
			t.Fatalf("told: %s", wrong)
		}
	}
}

// pass moves a time of a task into the past.
func (m *machine) pass(t *rapid.T) {
	c := rapid.SampledFrom([]Column{NextAt, LeaseUntil, LeaseUntil, DispatchAfter, FinishedAt}).Draw(t, "column")
	m.shift(t, m.pick(t, func(t *modelTask) bool { return column(&t.row, c) != nil })[0], c)
}

func (m *machine) shift(t *rapid.T, task *modelTask, c Column) {
	at := column(&task.row, c)
	if at == nil {
		t.Skip("it is NULL")
	}
	m.h.Shift(m.h, task.row.ID, c, back)
	task.put(c, at.Add(back))
	m.settle(t)
}

func (m *machine) dropLease(t *rapid.T) { m.dropLeaseOf(t, m.pick(t, (*modelTask).held)[0]) }

func (m *machine) dropLeaseOf(t *rapid.T, task *modelTask) {
	m.h.DropLease(m.h, task.row.ID)
	task.row.LeaseUntil = nil
	m.settle(t)
}

func (m *machine) sweep(t *rapid.T) {
	if task := m.pick(t, ended)[0]; ended(task) {
		m.shift(t, task, FinishedAt)
	}
	single := rapid.Bool().Draw(t, "single")
	if at := map[time.Time]bool{}; single {
		for _, task := range m.live() {
			if end := task.row.FinishedAt; end != nil {
				single = single && !at[*end] // which of two would go first is open
				at[*end] = true
			}
		}
	}
	limit, n, again := 1000, 0, false
	m.call(t, func(s persistence.Store) (err error) {
		if again = s == m.lossy; single && !again {
			limit = 1
		}
		n, err = s.Sweep(m.h.ctx, 24*time.Hour, limit)
		return err
	})
	gone := len(m.model.sweep(24*time.Hour, limit))
	if !again || n != 0 { // run twice, it knows nothing of what the first run removed
		want(t, "removed", n, gone)
	}
	m.settle(t)
}

// stranger makes calls of another service, which must find nothing.
func (m *machine) stranger(t *rapid.T) {
	some := ids(m.pick(t, anyTask))
	s, ctx := m.h.Other, m.h.ctx
	claimed, err := s.Claim(ctx, persistence.ClaimRequest{IDs: some, Scenes: []string{scene, "scene.b"}, Token: uuid.NewString(), By: "stranger", Lease: time.Hour})
	want(t, "claimed", len(claimed), 0)
	want(t, "error", err, nil)
	found, err := s.Expired(ctx, []string{scene, "scene.b"}, 0, 100)
	want(t, "expired", len(found), 0)
	want(t, "error", err, nil)
	var results []persistence.Result
	for _, task := range m.live() {
		results = append(results, result(persistence.Claim{ID: task.row.ID, Token: task.row.ClaimToken}, retry.StatusFailed))
	}
	over, err := s.Expire(ctx, results)
	want(t, "ended", len(over), 0)
	want(t, "error", err, nil)
	_, err = s.Operate(ctx, persistence.Action{Verb: persistence.Cancel, ID: some[0], Actor: "bob"})
	want(t, "not found", errors.Is(err, retry.ErrNotFound), true)
	wakes, err := s.Redispatch(ctx, some, time.Hour)
	want(t, "wake-ups", len(wakes), 0)
	want(t, "error", err, nil)
	want(t, "error", s.Undelivered(ctx, some), nil)
	want(t, "error", s.Dispatched(ctx, m.wakes), nil)
	n, err := s.Sweep(ctx, 0, 100)
	want(t, "removed", n, 0)
	want(t, "error", err, nil)
	m.settle(t)
}
