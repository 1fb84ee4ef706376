package storetest

import (
	"bytes"
	"slices"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// insert is the rule of Insert for one task. id is what the store answered: it names the row that was
// created.
func (m *model) insert(n persistence.NewTask, id int64) persistence.Inserted {
	if n.Status == "" {
		n.Status = retry.StatusWait
	}
	if n.Workflow != "" {
		// Its deadline is fixed even if nothing else comes of the task.
		if _, ok := m.workflows[n.Workflow]; !ok {
			m.workflows[n.Workflow] = m.now.plus(n.Deadline)
		}
	}
	told := func(status retry.Status) persistence.Inserted {
		in := persistence.Inserted{ID: id, Created: true, Status: status}
		if status == retry.StatusWait {
			in.Delay, in.Far = n.Delay, n.Delay > m.horizon
		}
		return in
	}
	if t := m.find(n.ID); t != nil {
		return told(t.row.Status) // given again
	}
	if n.Key == "" {
		n.Key = autoKey(id)
	}
	if h := m.holder(n.Scene, n.Key); h != nil {
		if !n.ReuseKey || !h.row.Status.Terminal() {
			return persistence.Inserted{ID: h.row.ID, Status: h.row.Status,
				Conflict: !bytes.Equal(h.row.Args, n.Args) || h.row.ContentType != n.ContentType}
		}
		h.holdsKey = false
	}
	t := &modelTask{fresh: map[Column]span{}, holdsKey: true, created: true, claims: map[string]retry.Task{}, row: retry.Task{
		ID: id, Service: Service, Scene: n.Scene, Key: n.Key, Status: n.Status, Unknown: n.LastClass == retry.ClassUnknown, Args: n.Args,
		ContentType: n.ContentType, Headers: n.Headers, Workflow: n.Workflow, ClaimedBy: n.By, StopReason: n.StopReason,
		LastError: n.LastError, LastClass: n.LastClass, Phase: n.Phase.OrExecute(),
	}}
	t.set(CreatedAt, m.now)
	t.due(m, n.Delay)
	switch {
	case n.Workflow != "":
		t.set(DeadlineAt, m.workflows[n.Workflow])
	case n.Deadline > 0:
		t.set(DeadlineAt, m.now.plus(n.Deadline))
	}
	if n.Status == retry.StatusInit {
		t.token(n.Token)
		t.set(LeaseUntil, m.now.plus(n.Lease))
	}
	if n.Event != nil {
		t.note(persistence.Event{To: n.Status, Reason: n.Event.Reason, Class: n.Event.Class, Error: n.LastError}, n.Event)
	}
	// A task that was removed and is given again is a new one: no journal row of the old is left.
	m.tasks = append(slices.DeleteFunc(m.tasks, func(old *modelTask) bool { return old.row.ID == id }), t)
	return told(n.Status)
}

// submit is the rule of Submit for one message: one that was taken before stores nothing, whatever became of its task. id is
// what the store answered.
func (m *model) submit(sub persistence.Submission, id int64) persistence.Submitted {
	n := sub.Task
	if taken, ok := m.messages[sub.MessageID]; ok && sub.MessageID != "" {
		out := persistence.Submitted{Inserted: persistence.Inserted{ID: taken}, Repeated: true}
		if t := m.find(taken); t != nil {
			out.Status = t.row.Status
			out.Conflict = t.row.Scene != n.Scene || !bytes.Equal(t.row.Args, n.Args) || t.row.ContentType != n.ContentType
			out.Repeated = !out.Conflict
		}
		return out
	}
	out := persistence.Submitted{Inserted: m.insert(n, id)}
	if !out.Conflict && sub.MessageID != "" {
		m.messages[sub.MessageID] = out.ID // one that conflicts was not taken
	}
	return out
}

// due makes the task due in d. The scan takes it some time after that, or, where it is beyond the horizon, when it
// comes within.
func (t *modelTask) due(m *model, d time.Duration) {
	at := m.now.plus(d)
	t.set(NextAt, at)
	if d > m.horizon {
		t.set(DispatchAfter, span{at.from.Add(-m.horizon), at.to.Add(-m.horizon / 2)})
	} else {
		t.set(DispatchAfter, at.plus(persistence.DispatchGap))
	}
}

// note adds a journal row: the task's part, and what the caller says of it.
func (t *modelTask) note(e persistence.Event, given *persistence.Event) {
	if given != nil {
		if given.From != "" {
			e.From = given.From
		}
		e.Actor, e.Note, e.PolicyVersion, e.Facts, e.Decision = given.Actor, given.Note, given.PolicyVersion, given.Facts, given.Decision
	}
	e.Attempt, e.Phase = t.row.Attempt, t.row.Phase
	t.journal = append(t.journal, e)
}

// claim is the rule of Claim: what it returns, and whether each counted an attempt.
func (m *model) claim(r persistence.ClaimRequest) (got []*modelTask, counted []bool) {
	const slack = 50 * time.Millisecond
	for _, t := range m.live() {
		if !slices.Contains(r.IDs, t.row.ID) || !slices.Contains(r.Scenes, t.row.Scene) {
			continue
		}
		waits := t.row.Status == retry.StatusWait && !t.row.NextAt.After(m.now.from.Add(slack))
		again := t.row.Status == retry.StatusExecuting && t.row.ClaimToken == r.Token
		if !waits && !again {
			continue
		}
		if waits {
			t.row.Attempt++
		}
		t.row.Status, t.row.ClaimedBy = retry.StatusExecuting, r.By
		t.token(r.Token)
		t.set(LeaseUntil, m.now.plus(r.Lease))
		got, counted = append(got, t), append(counted, waits)
	}
	return got, counted
}

// of returns the task of a claim that still holds.
func (m *model) of(c persistence.Claim) *modelTask {
	if t := m.find(c.ID); t != nil && t.held() && c.Token != "" && t.row.ClaimToken == c.Token {
		return t
	}
	return nil
}

// renew is the rule of Renew for one claim.
func (m *model) renew(lease time.Duration, c persistence.Claim) bool {
	t := m.of(c)
	if t != nil {
		t.set(LeaseUntil, m.now.plus(lease))
	}
	return t != nil
}

// finish is the rule of Finish for one result.
func (m *model) finish(r persistence.Result) persistence.Finished {
	out := persistence.Finished{ID: r.ID, Far: r.Status == retry.StatusWait && r.Delay > m.horizon}
	if t := m.of(r.Claim); t != nil {
		t.end(m, r, retry.StatusExecuting)
		if r.Idle {
			t.row.Uncharged++
		}
		out.Applied = true
	} else if t := m.find(r.ID); t != nil && r.Token != "" && t.row.ClaimToken == r.Token {
		out.Applied = true // before: it is recognised and nothing is written
	}
	return out
}

// end is what any end of an attempt writes.
func (t *modelTask) end(m *model, r persistence.Result, from retry.Status) {
	t.row.Phase, t.row.Tries = r.Phase.OrExecute(), r.Tries
	if r.Event != nil {
		t.note(persistence.Event{From: from, To: r.Status, Reason: r.Reason, Class: r.Class, Error: r.Error}, r.Event)
	}
	t.row.Status, t.row.LeaseUntil, t.row.Unknown, t.row.StopReason, t.dispatches = r.Status, nil, r.Unknown, "", 0
	switch r.Status {
	case retry.StatusWait:
		t.due(m, r.Delay)
	case retry.StatusSuccess:
		t.set(FinishedAt, m.now)
	case retry.StatusFailed:
		t.set(FinishedAt, m.now)
		t.row.StopReason = r.Reason
	default:
		t.row.StopReason = r.Reason
	}
	if r.Error != "" {
		t.row.LastError = r.Error
	}
	if r.Class != "" {
		t.row.LastClass = r.Class
	}
}

// release is the rule of Release for one claim. An inline run has no attempt to give back.
func (m *model) release(c persistence.Claim) bool {
	t := m.of(c)
	if t == nil || t.row.Status != retry.StatusExecuting {
		return false
	}
	t.row.Status, t.row.LeaseUntil, t.marked, t.uncounted = retry.StatusWait, nil, true, true
	t.row.Attempt--
	t.set(DispatchAfter, m.now.plus(persistence.DispatchGap))
	return true
}

// expired is the rule of Expired.
func (m *model) expired(scenes []string) []*modelTask {
	var out []*modelTask
	for _, t := range m.live() {
		if slices.Contains(scenes, t.row.Scene) && m.leaseOver(t) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *modelTask) int { return int(a.row.ID - b.row.ID) })
	return out
}

func (m *model) leaseOver(t *modelTask) bool {
	return t.held() && (t.row.LeaseUntil == nil || m.past(*t.row.LeaseUntil))
}

// expire is the rule of Expire for one result.
func (m *model) expire(r persistence.Result) bool {
	t := m.of(r.Claim)
	if t == nil || !m.leaseOver(t) {
		return false
	}
	was := t.row.Status
	t.end(m, r, "")
	t.marked = true
	t.row.Crashes++
	if was == retry.StatusExecuting {
		t.row.Uncharged++
	}
	return true
}

// hands says from which states a person may do what, and what follows.
var hands = map[persistence.Verb]struct {
	from   []retry.Status
	to     retry.Status
	reason retry.Reason
}{
	persistence.Retry: {[]retry.Status{retry.StatusWait, retry.StatusManualReview, retry.StatusFailed, retry.StatusCancelled},
		retry.StatusWait, retry.ReasonOperatorRetry},
	persistence.Succeed: {[]retry.Status{retry.StatusInit, retry.StatusWait, retry.StatusExecuting, retry.StatusManualReview, retry.StatusFailed},
		retry.StatusSuccess, retry.ReasonOperatorSucceed},
	persistence.Fail: {[]retry.Status{retry.StatusInit, retry.StatusWait, retry.StatusExecuting, retry.StatusManualReview},
		retry.StatusFailed, retry.ReasonOperatorFail},
	persistence.Cancel: {[]retry.Status{retry.StatusInit, retry.StatusWait, retry.StatusExecuting, retry.StatusManualReview},
		retry.StatusCancelled, retry.ReasonOperatorCancel},
}

// operate is the rule of Operate: the error, if any.
func (m *model) operate(a persistence.Action) error {
	t := m.find(a.ID)
	if t == nil {
		return retry.ErrNotFound
	}
	hand := hands[a.Verb]
	if !slices.Contains(hand.from, t.row.Status) {
		return retry.ErrState
	}
	if hand.to == retry.StatusWait && !t.holdsKey {
		if m.holder(t.row.Scene, t.row.Key) != nil {
			return retry.ErrKeyConflict
		}
		t.holdsKey = true
	}
	if a.Phase != "" {
		t.row.Phase, t.row.Unknown = a.Phase, a.Phase == retry.PhaseQuery
	}
	if hand.to == retry.StatusWait {
		t.row.Tries = 0
	}
	t.note(persistence.Event{From: t.row.Status, To: hand.to, Reason: hand.reason}, &persistence.Event{Actor: a.Actor, Note: a.Note})
	t.row.Status, t.row.LeaseUntil, t.row.FinishedAt, t.row.StopReason, t.marked, t.dispatches = hand.to, nil, nil, "", true, 0
	switch hand.to {
	case retry.StatusWait:
		t.due(m, 0)
		t.row.Uncharged, t.row.Crashes = t.row.Attempt, 0
		if t.limit > 0 {
			t.set(DeadlineAt, m.now.plus(t.limit))
		}
	case retry.StatusSuccess:
		t.set(FinishedAt, m.now)
	default:
		t.set(FinishedAt, m.now)
		t.row.StopReason = hand.reason
	}
	return nil
}

// sweep is the rule of Sweep: the ids that go, those that ended first first.
func (m *model) sweep(retention time.Duration, limit int) []int64 {
	var old []*modelTask
	for _, t := range m.live() {
		if t.row.FinishedAt != nil && m.past(t.row.FinishedAt.Add(retention)) {
			old = append(old, t)
		}
	}
	slices.SortStableFunc(old, func(a, b *modelTask) int { return a.row.FinishedAt.Compare(*b.row.FinishedAt) })
	var ids []int64
	for _, t := range old[:min(limit, len(old))] {
		t.gone = true
		ids = append(ids, t.row.ID)
	}
	return ids
}

// waiting returns those of the ids that wait.
func (m *model) waiting(ids []int64) []*modelTask {
	return slices.DeleteFunc(m.live(), func(t *modelTask) bool {
		return t.row.Status != retry.StatusWait || !slices.Contains(ids, t.row.ID)
	})
}

// redispatch is the rule of Redispatch.
func (m *model) redispatch(ids []int64, d time.Duration) []*modelTask {
	out := m.waiting(ids)
	for _, t := range out {
		t.set(DispatchAfter, m.now.plus(d).notBefore(t.row.NextAt).plus(persistence.DispatchGap))
	}
	return out
}

// undelivered is the rule of Undelivered.
func (m *model) undelivered(ids []int64) {
	for _, t := range m.waiting(ids) {
		if t.row.DispatchAfter.After(t.row.NextAt) {
			t.put(DispatchAfter, t.row.NextAt)
		}
	}
}

// undispatched is the rule of Undispatched.
func (m *model) undispatched() []*modelTask {
	out := slices.DeleteFunc(m.live(), func(t *modelTask) bool {
		return t.row.Status != retry.StatusWait || !m.past(t.row.DispatchAfter)
	})
	slices.SortStableFunc(out, func(a, b *modelTask) int { return a.row.DispatchAfter.Compare(b.row.DispatchAfter) })
	return out
}

// dispatched is the rule of Dispatched for one wake-up. The gap grows where the scan's time had come.
func (m *model) dispatched(w persistence.Wake) {
	for _, t := range m.waiting([]int64{w.ID}) {
		if t.row.DispatchAfter.Equal(w.Seen) {
			late := m.past(t.row.DispatchAfter)
			gap := min(persistence.DispatchGap<<min(t.dispatches, 20), persistence.MaxDispatchGap)
			t.set(DispatchAfter, m.now.notBefore(t.row.NextAt).plus(gap))
			if late {
				t.dispatches++
			}
		}
	}
}
