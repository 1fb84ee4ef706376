package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// dated is a call with the time of its claim. Calls are compared by their claims: a paused worker may act long after it.
type dated struct {
	call
	claimed time.Time
}

// effects checks what the other side saw.
func (c *checker) effects(h history) {
	if len(h.Calls) == 0 {
		return
	}
	task := int64(0)
	if len(h.Changes) > 0 {
		task = h.Changes[0].Task
	}
	began := holds(h.Changes)
	seen := map[string]int{}
	var calls []dated
	for _, call := range h.Calls {
		// Query may come twice in an attempt: before Execute, and after one whose outcome is unknown.
		if at := call.Step + " " + call.Run; call.Step == stepExecute || call.Step == stepCallback {
			if seen[at]++; seen[at] == 2 {
				c.bad(task, "two calls of %s under the one claim %s, key %s", call.Step, call.Run, call.Key)
			}
		}
		d := dated{call, call.Begin}
		if call.Attempt == 0 && len(h.Changes) > 0 && h.Changes[0].New.Status == retry.StatusInit {
			d.claimed = h.Changes[0].At // a record
		}
		if call.Attempt > 0 {
			i := slices.IndexFunc(began[call.Run], func(ch change) bool { return ch.New.Attempt == call.Attempt && ch.New.By == call.Process })
			if i < 0 {
				c.bad(task, "called as attempt %d of %s under the claim %s, which was never that", call.Attempt, call.Process, call.Run)
			} else {
				d.claimed = began[call.Run][i].At
			}
		}
		calls = append(calls, d)
	}
	slices.SortStableFunc(calls, func(a, b dated) int { return cmp.Compare(a.claimed.UnixNano(), b.claimed.UnixNano()) })
	s, _ := sceneOf(calls[0].Scene)
	c.executes(task, s, h.Changes, calls)
	if s.once {
		c.once(task, s, h.Changes, calls)
	}
	if s.books {
		c.booked(task, h.Changes, calls)
	}
}

// executes counts the attempts that called, from one retry by a person to the next. Those whose lease ran out are not charged.
func (c *checker) executes(task int64, s scene, changes []change, calls []dated) {
	type hold struct {
		token   string
		attempt int
	}
	crashed := map[hold]bool{}
	for _, ch := range changes {
		if held(ch.Old) && ch.New.Crashes > ch.Old.Crashes {
			crashed[hold{ch.Old.Token, ch.Old.Attempt}] = true
		}
	}
	n := 0
	var last time.Time
	for _, call := range calls {
		if call.Step != stepExecute || call.Attempt == 0 || crashed[hold{call.Run, call.Attempt}] {
			continue
		}
		if slices.ContainsFunc(changes, func(ch change) bool { return retried(ch) && ch.At.After(last) && !ch.At.After(call.claimed) }) {
			n = 0
		}
		last = call.claimed
		if n++; n == s.Policy.MaxAttempts+1 {
			c.bad(task, "the budget is %d attempts, and attempt %d is one more that called", s.Policy.MaxAttempts, call.Attempt)
		}
	}
}

func retried(ch change) bool { return ch.Writer == operator && ch.New.Status == retry.StatusWait }

// once: between two effects there must be a word: a person's, that it is to be executed, or Query's, that there was no effect.
func (c *checker) once(task int64, s scene, changes []change, calls []dated) {
	effects := slices.DeleteFunc(slices.Clone(calls), func(d dated) bool { return d.Effect.IsZero() })
	for i := 1; i < len(effects); i++ {
		a, b := effects[i-1], effects[i]
		person := slices.ContainsFunc(changes, func(ch change) bool {
			return retried(ch) && ch.New.Phase.OrExecute() == retry.PhaseExecute && ch.At.After(a.claimed) && !ch.At.After(b.claimed)
		})
		query := slices.ContainsFunc(calls, func(q dated) bool {
			return q.Said == string(retry.NoEffect) && q.Begin.After(a.claimed) && !q.Begin.After(b.Begin)
		})
		if !person && !query {
			c.bad(task, "scene %s: two effects (%s and %s) and neither a person's nor Query's word between", s.Name, a.Run, b.Run)
		}
	}
}

// booked: after a Callback that booked nothing is executed, unless a person wants it so.
func (c *checker) booked(task int64, changes []change, calls []dated) {
	for i, a := range calls {
		if a.Step != stepCallback || a.Said == "" {
			continue
		}
		for _, b := range calls[i+1:] {
			person := slices.ContainsFunc(changes, func(ch change) bool {
				return retried(ch) && ch.New.Phase.OrExecute() == retry.PhaseExecute && ch.At.After(a.claimed) && !ch.At.After(b.claimed)
			})
			if b.Step == stepExecute && b.claimed.After(a.claimed) && !person {
				c.bad(task, "executed as %s although it was booked as %s", b.Run, a.Run)
			}
		}
	}
}
