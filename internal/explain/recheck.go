package explain

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// Journal is what Recheck looks at.
type Journal struct {
	Task   retry.Task
	Events []persistence.Event // oldest first
	// Rules of the versions that Versions names. One that is missing here is missing in the store.
	Rules map[int]retry.Rules
}

// Report says whether a journal holds.
type Report struct {
	// Matches is false where there is any problem, in a row or of the whole.
	Matches bool `json:"matches"`
	// Rows has one entry for each event, in their order.
	Rows []Row `json:"rows"`
	// Problems that no single row has.
	Problems []string `json:"problems,omitempty"`
}

// Row is what was found about one event.
type Row struct {
	At      time.Time    `json:"at"`
	Attempt int          `json:"attempt"`
	Reason  retry.Reason `json:"reason"`
	// Decided says that the row holds a decision, or should.
	Decided       bool `json:"decided"`
	PolicyVersion int  `json:"policy_version,omitempty"`
	// Rules of that version. nil where they are missing or nothing was decided.
	Rules    *retry.Rules    `json:"rules,omitempty"`
	Facts    *retry.Facts    `json:"facts,omitempty"`
	Recorded *retry.Decision `json:"recorded,omitempty"`
	// Recomputed is what Decide says today. nil where it cannot be asked.
	Recomputed *retry.Decision `json:"recomputed,omitempty"`
	// Parts of the delay that Recomputed waits, or that came too late. nil where no delay was worked out.
	Parts *Parts `json:"parts,omitempty"`
	// Problems of the row; none means that it matches.
	Problems []string `json:"problems,omitempty"`
}

// Versions returns the versions of the rules that the journal names.
func Versions(events []persistence.Event) []int {
	var out []int
	for _, e := range events {
		if e.PolicyVersion != 0 && !slices.Contains(out, e.PolicyVersion) {
			out = append(out, e.PolicyVersion)
		}
	}
	return out
}

// Recheck makes a report on a journal.
func Recheck(j Journal) Report {
	r := Report{Rows: make([]Row, 0, len(j.Events))}
	var past budget
	last := lastRetry(j.Events)
	for i, e := range j.Events {
		row := recheckDecision(j, e)
		bad := func(format string, args ...any) { row.Problems = append(row.Problems, fmt.Sprintf(format, args...)) }
		was := past
		past.next(e)
		if f := e.Facts; f != nil {
			recheckPhase(was, *f, bad)
			if f.TaskID != j.Task.ID {
				bad("the facts are those of task %d", f.TaskID)
			}
			if f.Attempt != e.Attempt {
				bad("the facts are those of attempt %d, the row's is %d", f.Attempt, e.Attempt)
			}
			if f.Class != e.Class {
				bad("the facts' class is %s, the row's %s", name(f.Class), name(e.Class))
			}
			if f.Crashes != past.crashes {
				bad("the facts count %d runs that ended without a word, the journal has %d", f.Crashes, past.crashes)
			}
			if f.Uncharged != past.uncharged {
				bad("the facts count %d attempts that were not charged, by the journal there are %d", f.Uncharged, past.uncharged)
			}
			// The inline run's deadline began before the row did, and a person's retry gives the time again.
			if limit := deadline(j.Task); i > last && e.Attempt > 0 && f.Deadline != limit {
				bad("the facts' deadline is %v after the task's creation, the task's %v", f.Deadline, limit)
			}
		}
		before := retry.Status("")
		if i > 0 {
			before = j.Events[i-1].To
			if last := j.Events[i-1].Attempt; e.Attempt < last {
				bad("attempt %d comes after attempt %d", e.Attempt, last)
			}
		}
		switch {
		case i == 0 && e.From == "" && e.To.Valid():
		case !e.From.CanBecome(e.To):
			bad("a task that is %s cannot become %s", name(e.From), name(e.To))
		case !silent(before, e.From):
			bad("the row before ends in %s, this one begins with %s", name(before), e.From)
		}
		r.Rows = append(r.Rows, row)
	}
	r.Problems = recheckTask(j)
	r.Matches = len(r.Problems) == 0 && !slices.ContainsFunc(r.Rows, func(r Row) bool { return len(r.Problems) > 0 })
	return r
}

// recheckDecision makes a row's decision again.
func recheckDecision(j Journal, e persistence.Event) Row {
	row := Row{At: e.At, Attempt: e.Attempt, Reason: e.Reason, PolicyVersion: e.PolicyVersion, Facts: e.Facts, Recorded: e.Decision}
	row.Decided = e.Facts != nil || e.Decision != nil || decides(e.Reason)
	if !row.Decided {
		return row
	}
	bad := func(format string, args ...any) { row.Problems = append(row.Problems, fmt.Sprintf(format, args...)) }
	if rules, ok := j.Rules[e.PolicyVersion]; ok {
		row.Rules = &rules
	}
	switch {
	case e.PolicyVersion == 0:
		bad("cannot be checked: no policy version is recorded")
	case row.Rules == nil:
		bad("cannot be checked: policy version %d of %s is missing", e.PolicyVersion, j.Task.Scene)
	}
	if e.Facts == nil {
		bad("cannot be checked: no facts are recorded")
	}
	if e.Decision == nil {
		bad("cannot be checked: no decision is recorded")
	}
	if d := e.Decision; d != nil {
		if e.Reason != d.Reason {
			bad("the row's reason is %s, its decision's %s", name(e.Reason), name(d.Reason))
		}
		if e.To != d.Status {
			bad("the row's state is %s, its decision's %s", name(e.To), name(d.Status))
		}
		if e.Phase != "" && e.Phase != d.Phase.OrExecute() {
			bad("the row's phase is %s, its decision's %s", e.Phase, d.Phase.OrExecute())
		}
	}
	if row.Rules == nil || e.Facts == nil {
		return row
	}
	d := retry.Decide(*row.Rules, *e.Facts)
	row.Recomputed, row.Parts = &d, parts(*row.Rules, *e.Facts)
	if e.Decision != nil {
		row.Problems = append(row.Problems, differences(*e.Decision, d)...)
	}
	return row
}

// differences names what a recorded decision and one made again do not share.
func differences(recorded, again retry.Decision) []string {
	var out []string
	compare := func(what string, a, b any) {
		if a != b {
			out = append(out, fmt.Sprintf("%s: recorded %v, recomputed %v", what, a, b))
		}
	}
	compare("state", name(recorded.Status), name(again.Status))
	compare("reason", name(recorded.Reason), name(again.Reason))
	compare("phase", recorded.Phase.OrExecute(), again.Phase.OrExecute())
	compare("delay", recorded.Delay, again.Delay)
	compare("ceiling", recorded.Ceiling, again.Ceiling)
	compare("jittered", recorded.Jittered, again.Jittered)
	compare("retry after", recorded.RetryAfter, again.RetryAfter)
	return out
}

// recheckTask compares the task with its journal's end.
func recheckTask(j Journal) []string {
	t := j.Task
	var out []string
	bad := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	var last persistence.Event
	if n := len(j.Events); n > 0 {
		last = j.Events[n-1]
	}
	if !silent(last.To, t.Status) {
		bad("the task is %s, its journal ends in %s", t.Status, name(last.To))
	} else if last.To == t.Status && t.StopReason != "" && t.StopReason != last.Reason {
		bad("the task stopped for %s, its journal says %s", t.StopReason, name(last.Reason))
	}
	if t.Attempt < last.Attempt {
		bad("the task has had %d attempts, its journal %d", t.Attempt, last.Attempt)
	}
	return out
}

// silent reports whether a task gets from one state to another, or stays, without a row: claims, good ends of attempts and the
// first appearance are not journaled.
func silent(from, to retry.Status) bool {
	if from == to {
		return true
	}
	switch from {
	case "":
		return to == retry.StatusInit || to == retry.StatusWait || to == retry.StatusExecuting || to == retry.StatusSuccess
	case retry.StatusWait:
		return to == retry.StatusExecuting || to == retry.StatusSuccess
	case retry.StatusInit:
		return to == retry.StatusSuccess
	case retry.StatusExecuting: // a step, after which the attempt may be handed back, or succeed
		return to == retry.StatusSuccess || to == retry.StatusWait
	}
	return false
}

// budget counts again what the facts say of a task's past.
type budget struct {
	crashes, uncharged int
	phase              retry.Phase // of the task; empty: execute
	tries              int         // of Query or Callback in it
}

func (b *budget) next(e persistence.Event) {
	switch {
	case e.Reason == retry.ReasonOperatorRetry:
		// As the store does it: a new budget, and what was does not count.
		b.crashes, b.uncharged, b.tries = 0, e.Attempt, 0
	case e.Facts != nil && e.Facts.Crashed:
		b.crashes++
		if e.Attempt > 0 { // the inline run of a record is charged to nobody anyway
			b.uncharged++
		}
	case e.Facts != nil && e.Facts.Idle:
		b.uncharged++
	}
	switch d := e.Decision; {
	case d == nil && e.Phase != "" && e.Phase != b.phase.OrExecute():
		b.phase, b.tries = e.Phase, 0
	case d != nil && e.Facts != nil && d.Phase.OrExecute() == e.Facts.Phase:
		b.phase, b.tries = d.Phase, e.Facts.Tries
	case d != nil:
		b.phase, b.tries = d.Phase, 0
	}
}

// recheckPhase looks whether an attempt could end in its phase, and at its count of tries. was is
// the budget before.
func recheckPhase(was budget, f retry.Facts, bad func(string, ...any)) {
	before, now := was.phase.OrExecute(), f.Phase.OrExecute()
	if f.Crashed && now != before || before == retry.PhaseCallback && now != before || before == retry.PhaseQuery && now == retry.PhaseExecute {
		bad("the facts' phase is %s, the journal leaves the task in %s", now, before)
		return
	}
	tries := 0
	if now != retry.PhaseExecute {
		if now == before {
			tries = was.tries
		}
		if !f.Crashed {
			tries++
		}
	}
	if f.Tries != tries {
		bad("the facts count %d tries of %s, by the journal there are %d", f.Tries, now, tries)
	}
}

func lastRetry(events []persistence.Event) int {
	for i, e := range slices.Backward(events) {
		if e.Reason == retry.ReasonOperatorRetry {
			return i
		}
	}
	return -1
}

func deadline(t retry.Task) time.Duration {
	if t.DeadlineAt == nil {
		return 0
	}
	return t.DeadlineAt.Sub(t.CreatedAt)
}

// decides reports whether a reason is one of Decide's.
func decides(r retry.Reason) bool {
	switch r {
	case retry.ReasonCrashLoop, retry.ReasonFailPermanent, retry.ReasonManualReview, retry.ReasonDeadlineExceeded,
		retry.ReasonAttemptsExhausted, retry.ReasonScheduleRetry:
		return true
	}
	return false
}

// name shows an empty word.
func name[T ~string](s T) string {
	if s == "" {
		return "(none)"
	}
	return string(s)
}
