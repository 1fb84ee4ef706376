package main

import (
	"fmt"
	"time"

	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/retry"
)

// writeExplained writes an explained task for people.
func writeExplained(p *printer, t explained, now time.Time) {
	p.line("task %d of service %s", t.ID, t.Service)
	row := func(name, text string) { p.line("  %-12s %s", name, oneLine(text)) }
	row("scene", t.Scene)
	row("key", t.Key)
	state := string(t.Status)
	if hint := next(t.Task, now); hint != "" {
		state += ", " + hint
	}
	row("state", state)
	p.line("timeline")
	writeTimeline(p, t.Task, t.Journal)
	told, decisions, wrong := 0, 0, len(t.Problems)
	for i, r := range t.Rows {
		wrong += len(r.Problems)
		if !r.Decided && len(r.Problems) == 0 {
			continue
		}
		if r.Decided {
			decisions++
		}
		if told++; told == 1 {
			p.line("decisions")
		}
		writeRow(p, t, i)
	}
	p.line("next")
	p.line("  %s", oneLine(t.Next))
	p.line("check")
	for _, problem := range t.Problems {
		p.line("  %s", oneLine("DOES NOT MATCH: "+problem))
	}
	switch {
	case wrong > 0:
		p.line("  task %d: %s", t.ID, count(wrong, "thing does not match", "things do not match"))
	case decisions == 0:
		p.line("  task %d: nothing was decided yet; the rest matches", t.ID)
	default:
		p.line("  task %d: %s made again, all match", t.ID, count(decisions, "decision was", "decisions were"))
	}
}

func count(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// writeRow explains one row of the journal.
func writeRow(p *printer, t explained, i int) {
	r := t.Rows[i]
	row := func(name, format string, args ...any) {
		p.line("    %-12s %s", name, oneLine(fmt.Sprintf(format, args...)))
	}
	attempt := fmt.Sprintf("attempt %d", r.Attempt)
	switch {
	case r.Attempt == 0 && r.Decided:
		attempt = "the inline run (attempt 0)"
	case r.Attempt == 0:
		attempt = "before the first attempt"
	}
	p.line("  %s  %s: %s", stamp(r.At), attempt, oneLine(string(r.Reason)))
	if r.Attempt == 0 && r.Decided {
		row("inline", "the call and its local tries ran in the caller's process; this is how the last one ended")
	}
	if r.Rules != nil {
		row("policy", "version %d of %s: %s", r.PolicyVersion, t.Scene, rulesWords(*r.Rules))
	}
	if r.Facts != nil {
		row("facts", "%s", factsWords(*r.Facts))
	}
	if r.Recomputed != nil {
		row("why", "%s", why(r))
	}
	if d := r.Parts; d != nil {
		row("ceiling", "%v (%s), %s %d", d.Ceiling, d.Formula, spent(d.Phase), max(d.Charged, 1))
		if d.HashInput != "" {
			row("jitter", "%v = %v × (0.5 + 0.5 × %.6f), rounded down to %v; the fraction is from the hash of %q", d.Jittered, d.Ceiling, d.Fraction, d.Unit, d.HashInput)
		} else {
			row("jitter", "none: %v, rounded down to %v", d.Jittered, d.Unit)
		}
		longest := d.Jittered
		if d.RetryAfter > 0 {
			what := "shorter, so the policy's counts"
			if d.RetryAfter > d.Jittered {
				what, longest = "longer, so it counts", d.RetryAfter
			}
			row("Retry-After", "%v: %s", d.RetryAfter, what)
		}
		row("delay", "%v, from %v rounded up to what the delay queues can express (%s)", d.Delay, longest, gridWords(r.Rules.Grid))
	}
	if len(r.Problems) == 0 {
		row("check", "matches what was recorded")
	}
	for _, problem := range r.Problems {
		row("check", "DOES NOT MATCH: %s", problem)
	}
}

func rulesWords(r retry.Rules) string {
	p := r.Policy.WithDefaults()
	unknown, crashes := r.Unknown, r.MaxCrashes
	if unknown == "" {
		unknown = retry.UnknownReview
	}
	if crashes <= 0 {
		crashes = retry.DefaultMaxCrashes
	}
	s := string(p.Kind)
	if p.Kind == retry.Custom {
		s += fmt.Sprintf(" %v", p.Delays)
	} else {
		s += fmt.Sprintf(" from %v", p.Base)
	}
	s += fmt.Sprintf(" to %v, %s, deadline %v, unknown outcomes: %s, a person after %d runs without a word", p.Cap,
		count(p.MaxAttempts, "attempt", "attempts"), p.Deadline, unknown, crashes)
	if p.NoJitter {
		s += ", no jitter"
	}
	for _, h := range []struct {
		name   string
		policy *retry.Policy
	}{{"Query", r.Query}, {"Callback", r.Callback}} {
		if h.policy != nil {
			s += fmt.Sprintf("; %s: %s from %v to %v, %s", h.name, h.policy.Kind, h.policy.Ceiling(1), h.policy.Cap, count(h.policy.MaxAttempts, "try", "tries"))
		}
	}
	return s
}

// spent is what a phase's policy counts.
func spent(p retry.Phase) string {
	switch p {
	case retry.PhaseQuery:
		return "try of Query"
	case retry.PhaseCallback:
		return "try of Callback"
	case retry.PhaseExecute:
	}
	return "charged attempt"
}

func gridWords(g retry.Grid) string {
	if g.Unit <= 0 {
		return "any"
	}
	s := fmt.Sprintf("steps of %v", g.Unit)
	if g.SignificantBits > 0 {
		s += fmt.Sprintf(", %d significant bits", g.SignificantBits)
		if g.Horizon > 0 {
			s += fmt.Sprintf(" up to %v", g.Horizon)
		}
	}
	return s
}

func factsWords(f retry.Facts) string {
	class := f.Class
	if class == "" {
		class = retry.ClassUnknown
	}
	s := fmt.Sprintf("%s error", class)
	if f.Crashed {
		s = "ended without a word, so unknown"
	}
	since := "the task's creation"
	if f.Attempt == 0 && !f.Crashed {
		since = "the first call"
	}
	s += fmt.Sprintf(", %v after %s", f.Elapsed, since)
	if f.Deadline > 0 {
		s += fmt.Sprintf(" (deadline: %v)", f.Deadline)
	}
	if f.Uncharged > 0 {
		s += fmt.Sprintf(", %s not charged", count(f.Uncharged, "attempt is", "attempts are"))
	}
	if f.Crashes > 0 {
		s += ", " + count(f.Crashes, "run ended without a word", "runs ended without a word")
	}
	if f.RetryAfter > 0 {
		s += fmt.Sprintf(", asked to wait %v", f.RetryAfter)
	}
	switch phase := f.Phase.OrExecute(); {
	case f.Crashed && phase != retry.PhaseExecute:
		s += fmt.Sprintf(", in phase %s after %s", phase, count(f.Tries, "try", "tries"))
	case phase != retry.PhaseExecute:
		s += fmt.Sprintf(", ended by %s %d", spent(phase), f.Tries)
	}
	if f.Answer != "" {
		s += fmt.Sprintf(", which said %s", f.Answer)
	}
	if f.Idle {
		s += ", no Execute was called"
	}
	if f.Calls > 0 {
		s += ", " + count(f.Calls, "call", "calls")
	}
	return s
}

// why says which of Decide's questions gave the answer.
func why(r explain.Row) string {
	f := *r.Facts
	p, n := retry.Basis(*r.Rules, f, r.Recomputed.Phase)
	what := spent(r.Recomputed.Phase.OrExecute())
	switch r.Recomputed.Reason {
	case retry.ReasonCrashLoop:
		return fmt.Sprintf("%s without a word is as many as the policy allows: a person looks", count(f.Crashes, "end", "ends"))
	case retry.ReasonFailPermanent:
		if r.Recomputed.Status == retry.StatusManualReview {
			return "a permanent error is never tried again, and an effect may be outstanding or not booked: a person looks"
		}
		return "a permanent error is never tried again"
	case retry.ReasonManualReview:
		if f.Answer == retry.CannotTell {
			return "it may have taken effect, and the other side cannot tell"
		}
		return "it may have taken effect, and the scene does not say that repeating is safe"
	case retry.ReasonDeadlineExceeded:
		if r.Parts != nil {
			return fmt.Sprintf("the next attempt would come after %v, but only %v are left until the deadline", r.Parts.Delay, f.Deadline-f.Elapsed)
		}
		return fmt.Sprintf("the deadline was over: %v of %v", f.Elapsed, f.Deadline)
	case retry.ReasonAttemptsExhausted:
		if what != "charged attempt" {
			return fmt.Sprintf("%s %d is the last of %d: a person looks", what, n, p.MaxAttempts)
		}
		return fmt.Sprintf("%d of %s charged", n, count(p.MaxAttempts, "attempt is", "attempts are"))
	case retry.ReasonScheduleRetry:
		switch r.Recomputed.Phase.OrExecute() {
		case retry.PhaseQuery:
			return fmt.Sprintf("an effect may be outstanding, so the other side is asked before anything is redone: %d of %s so far, and there is time", n, count(p.MaxAttempts, "try", "tries"))
		case retry.PhaseCallback:
			return fmt.Sprintf("it took effect, so only its booking is tried again: %d of %s so far, and there is time", n, count(p.MaxAttempts, "try", "tries"))
		case retry.PhaseExecute:
		}
		return fmt.Sprintf("worth another attempt: %d of %d charged, and there is time", max(n, 0), p.MaxAttempts)
	}
	return string(r.Recomputed.Reason)
}

// whatNext says what will happen to a task and why. now is this machine's clock, as for next.
func whatNext(t explained, now time.Time) string {
	switch t.Status {
	case retry.StatusWait:
		when := "is due since " + stamp(t.NextAt)
		if d := t.NextAt.Sub(now); d > 0 {
			when = fmt.Sprintf("is due at %s, in %s", stamp(t.NextAt), span(d))
		}
		s := fmt.Sprintf("attempt %d%s %s, %s", t.Attempt+1, inPhase(t.Phase), when, whyWait(t))
		if t.DispatchAfter.Before(t.NextAt) {
			s += fmt.Sprintf("; the scan publishes its wake-up from %s on", stamp(t.DispatchAfter))
		} else {
			s += fmt.Sprintf("; should its wake-up be lost, the scan sends another from %s on", stamp(t.DispatchAfter))
		}
		if t.DeadlineAt != nil {
			s += "; no attempt follows one that ends after " + stamp(*t.DeadlineAt)
		}
		return s
	case retry.StatusInit, retry.StatusExecuting:
		s := fmt.Sprintf("attempt %d runs at %s", t.Attempt, t.ClaimedBy)
		if t.Status == retry.StatusInit {
			s = "the inline run holds it"
			if t.ClaimedBy != "" {
				s += " at " + t.ClaimedBy
			}
		}
		lease := ""
		if t.LeaseUntil != nil {
			lease = " (until " + stamp(*t.LeaseUntil) + ")"
		}
		return s + inPhase(t.Phase) + ": its result decides, or, should its lease" + lease + " run out without one, the scan does, with the outcome unknown"
	case retry.StatusManualReview:
		switch t.Phase {
		case retry.PhaseQuery:
			return "nothing until a person decides: tasks retry asks the other side again (with --phase execute or callback you say that it did not, or did, take effect); or tasks succeed, fail or cancel"
		case retry.PhaseCallback:
			return "nothing until a person decides: it took effect, tasks retry tries to book it again; or tasks succeed, fail or cancel"
		case retry.PhaseExecute:
		}
		return "nothing until a person decides: tasks retry, succeed, fail or cancel"
	case retry.StatusFailed, retry.StatusCancelled:
		return fmt.Sprintf("nothing: it ended (%s); tasks retry would begin again", t.StopReason)
	case retry.StatusSuccess:
	}
	return "nothing: it is done"
}

// inPhase names a phase that is not the usual one.
func inPhase(p retry.Phase) string {
	switch p {
	case retry.PhaseQuery:
		return " (asks first)"
	case retry.PhaseCallback:
		return " (books only)"
	case retry.PhaseExecute:
	}
	return ""
}

// whyWait says why a waiting task waits.
func whyWait(t explained) string {
	if len(t.Rows) == 0 {
		return "as it was enqueued"
	}
	switch last := t.Rows[len(t.Rows)-1]; {
	case last.Reason == retry.ReasonOperatorRetry:
		return "because a person made it due, with a new budget"
	case last.Recorded != nil && last.Attempt == 0:
		return fmt.Sprintf("because the inline run failed and a wait of %v was decided", last.Recorded.Delay)
	case last.Recorded != nil:
		return fmt.Sprintf("because attempt %d failed and a wait of %v was decided", last.Attempt, last.Recorded.Delay)
	default:
		return "as its journal's last row says"
	}
}
