package storetest

import (
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func (m *machine) insert(t *rapid.T) {
	n := rapid.IntRange(1, 2).Draw(t, "n")
	if n > maxTasks-len(m.live()) {
		n = 1
	}
	reuse := rapid.Bool().Draw(t, "reuse keys")
	limit := rapid.SampledFrom([]time.Duration{0, time.Hour, 100 * 24 * time.Hour}).Draw(t, "deadline")
	tasks := make([]persistence.NewTask, n)
	for i := range tasks {
		tasks[i] = m.newTask(t, limit)
		tasks[i].ReuseKey = reuse
	}
	var got []persistence.Inserted
	m.call(t, func(s persistence.Store) error {
		var err error
		if got, err = s.Insert(m.h.ctx, tasks); err != nil && s == m.lossy {
			// A transaction is not run again by the driver. Nobody knows, so it is given again.
			got, err = s.Insert(m.h.ctx, tasks)
		}
		return err
	})
	want(t, "answers", len(got), n)
	// Of two with one key the first given gets it.
	for i, n := range tasks {
		want(t, "inserted", got[i], m.model.insert(n, got[i].ID))
	}
	m.settle(t)
}

// submit takes a message with a task, mostly one of the few whose ids come again.
func (m *machine) submit(t *rapid.T) {
	limit := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "deadline")
	sub := persistence.Submission{MessageID: rapid.SampledFrom([]string{"", "m", "m", "n"}).Draw(t, "message"), Task: m.newTask(t, limit)}
	sub.Task.ReuseKey = rapid.Bool().Draw(t, "reuse keys")
	var got []persistence.Submitted
	again := false
	m.call(t, func(s persistence.Store) error {
		var err error
		if got, err = s.Submit(m.h.ctx, []persistence.Submission{sub}); err != nil && s == m.lossy {
			// A transaction is not run again by the driver, but the message comes again.
			again = true
			got, err = s.Submit(m.h.ctx, []persistence.Submission{sub})
		}
		return err
	})
	want(t, "answers", len(got), 1)
	_, before := m.messages[sub.MessageID]
	expect := m.model.submit(sub, got[0].ID)
	if again && !before && got[0].Repeated {
		// The first one was committed, and only its answer was lost.
		expect = m.model.submit(sub, got[0].ID)
	}
	want(t, "submitted", got[0], expect)
	m.settle(t)
}

// newTask draws a task, or one once more that is there or was.
func (m *machine) newTask(t *rapid.T, limit time.Duration) persistence.NewTask {
	if live := m.live(); len(live) > 0 && (len(live) >= maxTasks || rapid.IntRange(0, 4).Draw(t, "again") == 0) {
		row := one(t, "given again", m.tasks).row
		return persistence.NewTask{ID: row.ID, Scene: row.Scene, Key: row.Key, Args: row.Args, ContentType: row.ContentType}
	}
	fresh, err := m.h.Store.NextIDs(m.h.ctx, 1)
	if err != nil {
		t.Fatalf("ids: %v", err)
	}
	n := persistence.NewTask{
		ID:    fresh[0],
		Scene: rapid.SampledFrom([]string{scene, "scene.b"}).Draw(t, "scene"),
		Key:   rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key"),
		Args:  []byte(rapid.SampledFrom([]string{"x", "x", "y"}).Draw(t, "args")), ContentType: "c", Headers: map[string]string{"h": "v"},
		Delay: rapid.SampledFrom([]time.Duration{0, 0, soon, far}).Draw(t, "delay"), Deadline: limit,
		Status: rapid.SampledFrom([]retry.Status{"", retry.StatusWait, retry.StatusInit, retry.StatusManualReview}).Draw(t, "status"),
	}
	if limit > 0 && rapid.Bool().Draw(t, "shares a deadline") {
		n.Workflow = "w"
	}
	switch n.Status {
	case retry.StatusInit:
		n.Lease, n.Token, n.By = time.Hour, uuid.NewString(), "publisher"
	case retry.StatusManualReview:
		n.LastClass = retry.ClassUnknown
		facts := retry.Facts{TaskID: n.ID, Class: n.LastClass}
		r := m.decided(scene, persistence.Result{}, facts, &persistence.Event{Actor: "publisher", Reason: retry.ReasonManualReview, Class: n.LastClass})
		n.Scene, n.StopReason, n.LastError, n.Event = scene, r.Reason, r.Error, r.Event
	}
	return n
}
