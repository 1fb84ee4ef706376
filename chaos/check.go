package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/retry"
)

// operator is the name under which the harness acts as a person.
const operator = "operator"

// violation is a promise that was broken.
type violation struct {
	Task int64 // zero: of none
	What string
}

// history is what was seen of one task.
type history struct {
	Changes []change
	Calls   []call
}

// checker gathers violations.
type checker struct{ found []violation }

func (c *checker) bad(task int64, format string, args ...any) {
	c.found = append(c.found, violation{task, fmt.Sprintf(format, args...)})
}

// checkTask holds a task's history, at any moment of the run, against what was promised of it.
func checkTask(h history) []violation {
	var c checker
	for i, ch := range h.Changes {
		if i > 0 {
			c.follows(h.Changes[i-1], ch)
		}
		c.change(ch)
	}
	c.tokens(h)
	c.effects(h)
	return c.found
}

// follows: the audit must be whole, or it could not be relied on.
func (c *checker) follows(before, ch change) {
	if ch.Op == "INSERT" || before.New.Status != ch.Old.Status || before.New.Token != ch.Old.Token || before.New.Attempt != ch.Old.Attempt {
		c.bad(ch.Task, "change %d does not follow from change %d: the audit is not whole", ch.ID, before.ID)
	}
}

func held(s side) bool { return s.Status == retry.StatusInit || s.Status == retry.StatusExecuting }

// valid reports whether the row is held at that time by a lease that is not over.
func valid(s side, at time.Time) bool { return held(s) && s.Lease.After(at) }

// change checks one change by itself.
func (c *checker) change(ch change) {
	bad := func(format string, args ...any) { c.bad(ch.Task, format, args...) }
	switch {
	case ch.Op == "DELETE":
		bad("the row was deleted by %s", ch.Writer)
		return
	case ch.Op == "INSERT":
		if s := ch.New.Status; s != retry.StatusWait && s != retry.StatusInit && s != retry.StatusManualReview {
			bad("a new task is %s", s)
		}
		return
	}
	moved := ch.Old.Status != ch.New.Status
	switch {
	case ch.Old.Status == retry.StatusSuccess:
		bad("SUCCESS became %s, by %s", ch.New.Status, ch.Writer)
	case moved && !ch.Old.Status.CanBecome(ch.New.Status):
		bad("%s became %s, by %s: not legal", ch.Old.Status, ch.New.Status, ch.Writer)
	}
	attempts := 0
	switch {
	case ch.Writer == operator: // a person may end any claim
	case ch.New.Status == retry.StatusExecuting && (moved || ch.Old.Token != ch.New.Token):
		attempts = 1
		c.claim(ch)
	case held(ch.Old) && !moved:
		if ch.Old.Token != ch.New.Token {
			bad("the claim's token changed under %s, by %s", ch.Old.By, ch.Writer)
		}
		if what := "lease of %s was renewed"; ch.Writer != ch.Old.By {
			if step(ch) {
				what = "task of %s was taken a step further"
			}
			bad("fencing: the "+what+" by %s", ch.Old.By, ch.Writer)
		}
	case held(ch.Old):
		attempts = c.end(ch)
	default:
		bad("%s changed a task that was %s and not held", ch.Writer, ch.Old.Status)
	}
	if got := ch.New.Attempt - ch.Old.Attempt; got != attempts {
		bad("the attempts went from %d to %d while it went from %s to %s, by %s", ch.Old.Attempt, ch.New.Attempt, ch.Old.Status, ch.New.Status, ch.Writer)
	}
}

func (c *checker) claim(ch change) {
	bad := func(format string, args ...any) { c.bad(ch.Task, format, args...) }
	s, known := sceneOf(ch.Scene)
	if !known {
		bad("a task of scene %s, which nobody has, was claimed by %s", ch.Scene, ch.Writer)
	}
	if valid(ch.Old, ch.At) {
		bad("two valid leases: %s claimed it under the lease of %s, which had %v left", ch.Writer, ch.Old.By, ch.Old.Lease.Sub(ch.At))
	}
	if ch.New.By != ch.Writer {
		bad("claimed by %s in the name of %s", ch.Writer, ch.New.By)
	}
	rules := s.Rules(retry.Grid{})
	// In the other phases an attempt may run no Execute, and is not charged then; their calls are counted in the ledger.
	if charged := ch.New.Attempt - ch.New.Uncharged; charged > rules.Policy.MaxAttempts && ch.New.Phase == retry.PhaseExecute {
		bad("the budget is %d attempts, and %s began attempt %d that counts (%d in all)", rules.Policy.MaxAttempts, ch.Writer, charged, ch.New.Attempt)
	}
	if ch.Old.Crashes >= rules.MaxCrashes {
		bad("claimed after %d crashes, of which %d are allowed", ch.Old.Crashes, rules.MaxCrashes)
	}
}

// end checks the end of a hold: by its holder, or by a scan once its lease was over. It returns by how much the attempts
// may have moved.
func (c *checker) end(ch change) (attempts int) {
	switch {
	case ch.New.Crashes > ch.Old.Crashes: // a scan
		if left := ch.Old.Lease.Sub(ch.At); left > 0 {
			c.bad(ch.Task, "the lease of %s was ended as over by %s, and had %v left", ch.Old.By, ch.Writer, left)
		}
	case ch.Writer != ch.Old.By:
		c.bad(ch.Task, "fencing: the claim of %s was ended as %s by %s", ch.Old.By, ch.New.Status, ch.Writer)
	case ch.Old.Status == retry.StatusExecuting && ch.New.Status == retry.StatusWait && ch.New.Attempt < ch.Old.Attempt:
		return -1 // handed back before its handler began
	}
	return 0
}

// released reports whether a change hands a claim back.
func released(ch change) bool {
	return held(ch.Old) && ch.New.Status == retry.StatusWait && ch.New.Attempt < ch.Old.Attempt
}

// step reports whether a change is a step within an attempt: from Query's no to Execute, say.
func step(ch change) bool {
	return ch.Op == "UPDATE" && held(ch.Old) && held(ch.New) && ch.Old.Token == ch.New.Token && ch.Old.Lease.Equal(ch.New.Lease)
}

// holds returns when each token began to hold the task: once, but for a claim whose answer was lost (see tokens).
func holds(changes []change) map[string][]change {
	out := map[string][]change{}
	for _, ch := range changes {
		if held(ch.New) && (!held(ch.Old) || ch.Old.Token != ch.New.Token) {
			out[ch.New.Token] = append(out[ch.New.Token], ch)
		}
	}
	return out
}

// tokens: one that was lost or given back must not hold again. One case is none: the driver runs a claim a second time
// after a connection was lost, and that may be late, as when the process was paused meanwhile. Nobody has heard of the first
// hold then: no call is made under it, and a scan ends it.
func (c *checker) tokens(h history) {
	for token, began := range holds(h.Changes) {
		for i, ch := range began[:len(began)-1] {
			called := slices.ContainsFunc(h.Calls, func(call call) bool { return call.Run == token && call.Attempt == ch.New.Attempt })
			expired := slices.ContainsFunc(h.Changes, func(end change) bool {
				return end.Old.Token == token && end.Old.Attempt == ch.New.Attempt && end.New.Crashes > end.Old.Crashes
			})
			if called || !expired || began[i+1].New.By != ch.New.By {
				c.bad(ch.Task, "the claim %s of %s, attempt %d, was over and holds again", token, ch.New.By, ch.New.Attempt)
			}
		}
	}
}

// move is a change of state. may: the journal need not have it.
type move struct {
	from, to retry.Status
	may      bool
}

func (m move) String() string { return string(m.from) + " to " + string(m.to) }

// checkJournal compares a task's changes with its journal, and has every decision made again.
func checkJournal(changes []change, j explain.Journal) []violation {
	var c checker
	r := explain.Recheck(j)
	for _, p := range r.Problems {
		c.bad(j.Task.ID, "journal: %s", p)
	}
	for i, row := range r.Rows {
		for _, p := range row.Problems {
			c.bad(j.Task.ID, "journal, row %d: %s", i+1, p)
		}
	}
	var want, got []move
	for _, ch := range changes {
		moved := ch.Old.Status != ch.New.Status
		switch {
		case ch.Op != "UPDATE" || released(ch):
		case ch.Writer != operator && (!moved && !step(ch) || moved && ch.New.Status == retry.StatusExecuting):
			// Renewals and claims are not journaled.
		default:
			m := move{from: ch.Old.Status, to: ch.New.Status}
			// A good end has a row only where there is more to tell than that.
			m.may = ch.Writer != operator && ch.New.Status == retry.StatusSuccess
			want = append(want, m)
		}
	}
	for _, e := range j.Events {
		if e.From != "" {
			got = append(got, move{from: e.From, to: e.To})
		}
	}
	left := slices.Clone(got)
	for _, m := range want {
		if len(left) > 0 && left[0] == (move{from: m.from, to: m.to}) {
			left = left[1:]
		} else if !m.may {
			left = append(left, m) // missing
			break
		}
	}
	if len(left) > 0 {
		c.bad(j.Task.ID, "the journal has %v, and the row went %v", got, want)
	}
	return c.found
}
