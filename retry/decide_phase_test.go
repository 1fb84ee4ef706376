package retry_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/retry"
)

// asking are rules whose phases can be told apart by their delays: Execute waits 2 s, Query 10 s, Callback 30 s.
func asking() retry.Rules {
	r := rules(3, retry.UnknownAsk)
	r.Policy.NoJitter = true
	r.Query = &retry.Policy{Kind: retry.Fixed, Base: 10 * time.Second, MaxAttempts: 4, NoJitter: true}
	r.Callback = &retry.Policy{Kind: retry.Fixed, Base: 30 * time.Second, MaxAttempts: 2, NoJitter: true}
	return r
}

func TestDecidePhases(t *testing.T) {
	const s, hour = time.Second, time.Hour
	const wait, failed, review = retry.StatusWait, retry.StatusFailed, retry.StatusManualReview
	const execute, query, callback = retry.PhaseExecute, retry.PhaseQuery, retry.PhaseCallback
	const transient, permanent, unknown = retry.ClassTransient, retry.ClassPermanent, retry.ClassUnknown
	for _, c := range []struct {
		name   string
		f      retry.Facts
		status retry.Status
		reason retry.Reason
		phase  retry.Phase
		delay  time.Duration
	}{
		{"an unknown outcome is asked about", retry.Facts{Attempt: 1, Class: unknown}, wait, retry.ReasonScheduleRetry, query, 10 * s},
		{"even that of the last attempt", retry.Facts{Attempt: 3, Class: unknown}, wait, retry.ReasonScheduleRetry, query, 10 * s},
		{"a crash is asked about", retry.Facts{Attempt: 1, Uncharged: 1, Crashes: 1, Crashed: true}, wait, retry.ReasonScheduleRetry, query, 10 * s},
		{"the inline run too", retry.Facts{Class: unknown}, wait, retry.ReasonScheduleRetry, query, 10 * s},
		{"unknown after the deadline is not failed", retry.Facts{Attempt: 1, Class: unknown, Elapsed: hour, Deadline: hour}, review, retry.ReasonDeadlineExceeded, query, 0},
		{"nor where the question would come too late", retry.Facts{Attempt: 1, Class: unknown, Elapsed: hour - s, Deadline: hour}, review, retry.ReasonDeadlineExceeded, query, 0},
		{"the third crash asks nobody but a person", retry.Facts{Attempt: 3, Uncharged: 3, Crashes: 3, Crashed: true}, review, retry.ReasonCrashLoop, query, 0},

		{"pending waits", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Answer: retry.Pending, Class: transient}, wait, retry.ReasonScheduleRetry, query, 10 * s},
		{"pending spends no attempt of Execute", retry.Facts{Attempt: 9, Uncharged: 6, Idle: true, Phase: query, Tries: 3, Answer: retry.Pending, Class: transient}, wait, retry.ReasonScheduleRetry, query, 10 * s},
		{"but one of Query", retry.Facts{Attempt: 9, Uncharged: 6, Idle: true, Phase: query, Tries: 4, Answer: retry.Pending, Class: transient}, review, retry.ReasonAttemptsExhausted, query, 0},
		{"a Query that fails waits", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Class: transient}, wait, retry.ReasonScheduleRetry, query, 10 * s},
		{"one that fails for good is for a person", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Class: permanent}, review, retry.ReasonFailPermanent, query, 0},
		{"cannot tell is for a person", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Answer: retry.CannotTell, Class: unknown}, review, retry.ReasonManualReview, query, 0},
		{"cannot tell before the deadline", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Answer: retry.CannotTell, Class: unknown, Elapsed: hour, Deadline: hour}, review, retry.ReasonManualReview, query, 0},
		{"pending after the deadline is not failed", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Answer: retry.Pending, Class: transient, Elapsed: hour, Deadline: hour}, review, retry.ReasonDeadlineExceeded, query, 0},
		{"Query waits as it is asked to", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Class: transient, RetryAfter: 12800 * time.Millisecond}, wait, retry.ReasonScheduleRetry, query, 12800 * time.Millisecond},
		{"no effect after an Execute: it waits for the next", retry.Facts{Attempt: 1, Phase: query, Tries: 1, Answer: retry.NoEffect, Class: transient}, wait, retry.ReasonScheduleRetry, execute, 2 * s},
		{"no effect, attempts spent", retry.Facts{Attempt: 4, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Answer: retry.NoEffect, Class: transient}, failed, retry.ReasonAttemptsExhausted, execute, 0},
		{"no effect, deadline over", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: query, Tries: 1, Answer: retry.NoEffect, Class: transient, Elapsed: hour, Deadline: hour}, failed, retry.ReasonDeadlineExceeded, execute, 0},
		{"a crash while asking asks again", retry.Facts{Attempt: 2, Uncharged: 2, Crashes: 1, Crashed: true, Phase: query, Tries: 2}, wait, retry.ReasonScheduleRetry, query, 10 * s},

		{"a Callback that fails is tried again alone", retry.Facts{Attempt: 1, Phase: callback, Tries: 1, Class: transient}, wait, retry.ReasonScheduleRetry, callback, 30 * s},
		{"with a budget of its own", retry.Facts{Attempt: 2, Uncharged: 1, Idle: true, Phase: callback, Tries: 2, Class: transient}, review, retry.ReasonAttemptsExhausted, callback, 0},
		{"for good", retry.Facts{Attempt: 1, Phase: callback, Tries: 1, Class: permanent}, review, retry.ReasonFailPermanent, callback, 0},
		{"after the deadline", retry.Facts{Attempt: 1, Phase: callback, Tries: 1, Class: transient, Elapsed: hour, Deadline: hour}, review, retry.ReasonDeadlineExceeded, callback, 0},
		{"a crash while booking books again", retry.Facts{Attempt: 1, Uncharged: 1, Crashes: 1, Crashed: true, Phase: callback}, wait, retry.ReasonScheduleRetry, callback, 30 * s},
	} {
		c.f.TaskID = 1
		d := retry.Decide(asking(), c.f)
		if d.Status != c.status || d.Reason != c.reason || d.Phase.OrExecute() != c.phase || d.Delay != asking().Grid.Up(c.delay) && c.delay > 0 || c.delay == 0 && d.Delay != 0 {
			t.Errorf("%s: %s %s in %s after %v, want %s %s in %s after %v", c.name, d.Status, d.Reason, d.Phase.OrExecute(), d.Delay, c.status, c.reason, c.phase, c.delay)
		}
	}
}

// A Callback that crashed is booked again whatever the scene says of unknown outcomes: nothing is redone by it.
func TestDecideCallbackCrashWithoutAsk(t *testing.T) {
	for _, mode := range []retry.UnknownMode{retry.UnknownReview, retry.UnknownRepeat} {
		d := retry.Decide(rules(1, mode), retry.Facts{TaskID: 1, Attempt: 1, Uncharged: 1, Crashes: 1, Crashed: true, Phase: retry.PhaseCallback})
		if d.Status != retry.StatusWait || d.Phase != retry.PhaseCallback {
			t.Errorf("%s: %+v", mode, d)
		}
	}
}

// Whatever happens, a task whose effect may be outstanding or is not booked never stops as FAILED, never goes back to Execute without a word of
// Query, and what took effect is only ever booked.
func TestDecideNeverForgetsAnEffect(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := retry.Facts{
			TaskID: rapid.Int64Range(1, 1e6).Draw(t, "id"), Attempt: rapid.IntRange(0, 20).Draw(t, "attempt"), Uncharged: rapid.IntRange(0, 20).Draw(t, "uncharged"),
			Crashes: rapid.IntRange(0, 4).Draw(t, "crashes"), Crashed: rapid.Bool().Draw(t, "crashed"), Tries: rapid.IntRange(0, 6).Draw(t, "tries"),
			Elapsed: time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "elapsed")), Deadline: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "deadline")),
			Class: rapid.SampledFrom([]retry.Class{"", retry.ClassTransient, retry.ClassPermanent, retry.ClassUnknown}).Draw(t, "class"),
			Phase: rapid.SampledFrom([]retry.Phase{"", retry.PhaseExecute, retry.PhaseQuery, retry.PhaseCallback}).Draw(t, "phase"),
		}
		if f.Phase == retry.PhaseQuery && !f.Crashed {
			f.Answer = rapid.SampledFrom([]retry.Answer{"", retry.NoEffect, retry.Pending, retry.CannotTell}).Draw(t, "answer")
		}
		d := retry.Decide(asking(), f)
		uncertain := f.Phase == retry.PhaseCallback || f.Phase == retry.PhaseQuery && f.Answer != retry.NoEffect ||
			f.Phase.OrExecute() == retry.PhaseExecute && (f.Crashed || f.Class == "" || f.Class == retry.ClassUnknown)
		if uncertain && (d.Status == retry.StatusFailed || d.Phase.OrExecute() == retry.PhaseExecute) {
			t.Fatalf("%+v gives %+v", f, d)
		}
		if f.Phase == retry.PhaseCallback && d.Phase != retry.PhaseCallback {
			t.Fatalf("%+v gives %+v", f, d)
		}
	})
}
