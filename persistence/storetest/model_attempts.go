package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// result draws how a claim's holder ends the attempt, as a consumer and a publisher do: by Decide, and
// by what it was told when it claimed.
func (m *machine) result(t *rapid.T, c persistence.Claim) persistence.Result {
	told := m.find(c.ID).row
	if row, ok := m.find(c.ID).claims[c.Token]; ok {
		told = row
	}
	r := persistence.Result{Claim: c, Status: retry.StatusSuccess, Reason: retry.ReasonSuccess}
	event := &persistence.Event{Actor: "worker", Note: "n"}
	if told.Status == retry.StatusInit {
		event.From = retry.StatusInit
	}
	class := rapid.SampledFrom([]retry.Class{"", retry.ClassTransient, retry.ClassTransient, retry.ClassPermanent, retry.ClassUnknown}).Draw(t, "class")
	if class == "" {
		if rapid.Bool().Draw(t, "journaled") {
			r.Event = event
		}
		return r
	}
	facts := retry.Facts{TaskID: c.ID, Attempt: told.Attempt, Uncharged: told.Uncharged, Crashes: told.Crashes, Class: class,
		RetryAfter: rapid.SampledFrom([]time.Duration{0, 0, soon, far}).Draw(t, "retry after")}
	facts.Elapsed, facts.Deadline = m.ages(told)
	return m.decided(told.Scene, r, facts, event)
}

func (m *machine) ages(row retry.Task) (elapsed, deadline time.Duration) {
	if row.DeadlineAt != nil {
		deadline = row.DeadlineAt.Sub(row.CreatedAt)
	}
	return m.now.to.Sub(row.CreatedAt), deadline
}

func (m *machine) decided(scene string, r persistence.Result, f retry.Facts, e *persistence.Event) persistence.Result {
	d := retry.Decide(m.rules[scene], f)
	decided := persistence.Decided(r.Claim, f, d, m.versions[scene], e.Actor, "no: "+string(f.Class))
	decided.Event = nil
	r = decided
	e.PolicyVersion, e.Facts, e.Decision, r.Event = m.versions[scene], &f, &d, e
	return r
}

func (m *machine) claim(t *rapid.T) {
	m.last = persistence.ClaimRequest{
		IDs: ids(m.pick(t, waits)), Token: uuid.NewString(), By: "worker", Lease: time.Hour,
		Scenes: rapid.SampledFrom([][]string{{scene, "scene.b"}, {scene, "scene.b"}, {scene}}).Draw(t, "scenes"),
	}
	m.claimAgain(t)
}

// claimAgain makes the last request once more, as after a lost answer: perhaps much later.
func (m *machine) claimAgain(t *rapid.T) {
	if m.last.Token == "" {
		t.Skip("nothing was claimed")
	}
	var got []persistence.Claimed
	m.call(t, func(s persistence.Store) (err error) {
		got, err = s.Claim(m.h.ctx, m.last)
		return err
	})
	claimed, counted := m.model.claim(m.last)
	m.settle(t)
	want(t, "tasks claimed", len(got), len(claimed))
	for i, task := range claimed {
		at := slices.IndexFunc(got, func(c persistence.Claimed) bool { return c.ID == task.row.ID })
		if at < 0 {
			t.Fatalf("task %d is not claimed", task.row.ID)
		}
		c := got[at]
		for _, wrong := range differences(task.row, c.Task) {
			t.Fatalf("told of task %d: %s", c.ID, wrong)
		}
		_, deadline := m.ages(task.row)
		want(t, "deadline", c.Deadline, deadline)
		m.within(t, "elapsed", c.Elapsed, m.now.from.Sub(task.row.CreatedAt), m.now.to.Sub(task.row.CreatedAt))
		m.within(t, "late", c.Late, m.now.from.Sub(task.row.NextAt), m.now.to.Sub(task.row.NextAt))
		if counted[i] {
			// A claimer repeats its request only while it knows of no answer. So whoever acted on an attempt under this
			// token does not act later than another under the same.
			m.seen = slices.DeleteFunc(m.seen, func(e persistence.Expired) bool { return e.Token == m.last.Token })
			m.results = slices.DeleteFunc(m.results, func(r persistence.Result) bool { return r.Token == m.last.Token })
		}
	}
}

func (m *machine) renew(t *rapid.T) { m.renewThese(t, m.claims(t)) }

func (m *machine) renewThese(t *rapid.T, claims []persistence.Claim) {
	var got []persistence.Claim
	m.call(t, func(s persistence.Store) (err error) {
		got, err = s.Renew(m.h.ctx, 2*time.Hour, claims)
		return err
	})
	for _, c := range claims {
		want(t, "kept", slices.Contains(got, c), m.model.renew(2*time.Hour, c))
	}
	m.settle(t)
}

func (m *machine) finish(t *rapid.T) {
	m.results = nil
	for _, c := range m.claims(t) {
		m.results = append(m.results, m.result(t, c))
	}
	m.finishAgain(t)
}

// finishAgain gives the last results once more.
func (m *machine) finishAgain(t *rapid.T) {
	if len(m.results) == 0 {
		t.Skip("nothing was finished")
	}
	var got []persistence.Finished
	var err error
	m.call(t, func(s persistence.Store) error {
		got, err = s.Finish(m.h.ctx, m.results)
		if errors.Is(err, retry.ErrInvalid) {
			return nil
		}
		return err
	})
	seen := map[int64]bool{}
	for _, r := range m.results {
		seen[r.ID] = true
	}
	want(t, "refused, because a task has two results", err != nil, len(seen) < len(m.results))
	if err == nil {
		want(t, "answers", len(got), len(m.results))
		for i, r := range m.results {
			want(t, "finished", got[i], m.model.finish(r))
		}
	}
	m.settle(t)
}

func (m *machine) release(t *rapid.T) {
	m.released = m.claims(t)
	m.releaseAgain(t)
}

// releaseAgain gives the last claims back once more.
func (m *machine) releaseAgain(t *rapid.T) {
	if len(m.released) == 0 {
		t.Skip("nothing was released")
	}
	var got []int64
	m.call(t, func(s persistence.Store) (err error) {
		got, err = s.Release(m.h.ctx, m.released)
		return err
	})
	var released []int64
	for _, c := range m.released {
		if m.model.release(c) {
			released = append(released, c.ID)
		}
	}
	sameIDs(t, "released", got, released)
	m.settle(t)
}

func (m *machine) expired(t *rapid.T) {
	scenes := rapid.SampledFrom([][]string{{scene, "scene.b"}, {"scene.b"}}).Draw(t, "scenes")
	var got []persistence.Expired
	m.call(t, func(s persistence.Store) (err error) {
		got, err = s.Expired(m.h.ctx, scenes, 0, 100)
		return err
	})
	found := m.model.expired(scenes)
	want(t, "expired", len(got), len(found))
	for i, task := range found {
		e, row := got[i], task.row
		m.within(t, "elapsed", e.Elapsed, m.now.from.Sub(row.CreatedAt), m.now.to.Sub(row.CreatedAt))
		if row.LeaseUntil != nil {
			m.within(t, "lease ended", e.LeaseEnded, m.now.from.Sub(*row.LeaseUntil), m.now.to.Sub(*row.LeaseUntil))
		} else {
			want(t, "lease ended", e.LeaseEnded, 0)
		}
		_, deadline := m.ages(row)
		want(t, "expired", e, persistence.Expired{Claim: persistence.Claim{ID: row.ID, Token: row.ClaimToken}, Scene: row.Scene, Status: row.Status,
			Attempt: row.Attempt, Crashes: row.Crashes, Uncharged: row.Uncharged, ClaimedBy: row.ClaimedBy, Elapsed: e.Elapsed, Deadline: deadline, LeaseEnded: e.LeaseEnded, Phase: row.Phase, Tries: row.Tries})
	}
	if len(got) > 0 {
		m.seen = got
	}
	m.settle(t)
}

// reclaim lets the holder end its attempt after all, or hand it back, and another begin the next, whose lease runs out too.
func (m *machine) reclaim(t *rapid.T, e persistence.Expired) {
	task := m.find(e.ID)
	if task == nil || !task.held() || task.row.ClaimToken != e.Token {
		return
	}
	if task.row.Status == retry.StatusExecuting && rapid.IntRange(0, 3).Draw(t, "ends") > 0 {
		m.released = []persistence.Claim{e.Claim} // so that it is due for certain
		m.releaseAgain(t)
	} else {
		m.results = []persistence.Result{m.result(t, e.Claim)}
		m.finishAgain(t)
	}
	m.last = persistence.ClaimRequest{IDs: []int64{e.ID}, Scenes: []string{e.Scene}, Token: uuid.NewString(), By: "another", Lease: time.Hour}
	m.claimAgain(t)
	if task.held() {
		m.shift(t, task, LeaseUntil)
	}
}

// expire ends claims that a scan found, perhaps a while ago, as the reaper decides.
func (m *machine) expire(t *rapid.T) {
	if len(m.seen) == 0 || rapid.Bool().Draw(t, "scan first") {
		if task := m.pick(t, (*modelTask).held)[0]; rapid.IntRange(0, 3).Draw(t, "no lease") == 0 {
			m.dropLeaseOf(t, task)
		} else if task.held() && task.row.LeaseUntil != nil {
			m.shift(t, task, LeaseUntil)
		}
		m.expired(t)
	}
	if len(m.seen) == 0 {
		t.Skip("nothing was found")
	}
	switch rapid.SampledFrom([]string{"nothing", "nothing", "renewed", "claimed anew", "claimed anew"}).Draw(t, "meanwhile") {
	case "renewed":
		var late []persistence.Claim // the holders come back after the scan
		for _, e := range m.seen {
			late = append(late, e.Claim)
		}
		m.renewThese(t, late)
	case "claimed anew":
		m.reclaim(t, m.seen[0]) // one that is ended below in any case
	}
	some := m.seen[:rapid.IntRange(1, len(m.seen)).Draw(t, "so many")]
	results := make([]persistence.Result, len(some))
	for i, e := range some {
		facts := retry.Facts{TaskID: e.ID, Attempt: e.Attempt, Uncharged: e.Uncharged + 1, Crashes: e.Crashes + 1, Crashed: true,
			Elapsed: e.Elapsed, Deadline: e.Deadline, Class: retry.ClassUnknown}
		if e.Status == retry.StatusInit {
			facts.Uncharged = e.Uncharged
		}
		results[i] = m.decided(e.Scene, persistence.Result{Claim: e.Claim}, facts, &persistence.Event{Actor: "reaper", From: e.Status})
	}
	var got []int64
	m.call(t, func(s persistence.Store) (err error) {
		got, err = s.Expire(m.h.ctx, results)
		return err
	})
	var ended []int64
	for _, r := range results {
		if m.model.expire(r) {
			ended = append(ended, r.ID)
		}
	}
	sameIDs(t, "expired", got, ended)
	m.settle(t)
}
