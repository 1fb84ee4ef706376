package retry_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/retry"
)

func rules(maxAttempts int, unknown retry.UnknownMode) retry.Rules {
	return retry.Rules{
		Policy:  retry.Policy{Kind: retry.Fixed, Base: 2 * time.Second, MaxAttempts: maxAttempts},
		Unknown: unknown,
		Grid:    retry.Grid{Unit: 100 * time.Millisecond, SignificantBits: 5, Horizon: 27 * time.Minute},
	}
}

// The table of the design and what its order of questions implies.
func TestDecide(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name string
		r    retry.Rules
		f    retry.Facts
		want retry.Reason
	}{
		{"1 of 3, 5 s of 30 s", rules(3, ""), retry.Facts{TaskID: 1, Attempt: 1, Elapsed: 5 * s, Deadline: 30 * s, Class: retry.ClassTransient}, retry.ReasonScheduleRetry},
		{"3 of 3", rules(3, ""), retry.Facts{TaskID: 1, Attempt: 3, Elapsed: 5 * s, Deadline: 30 * s, Class: retry.ClassTransient}, retry.ReasonAttemptsExhausted},
		{"31 s of 30 s", rules(3, ""), retry.Facts{TaskID: 1, Attempt: 1, Elapsed: 31 * s, Deadline: 30 * s, Class: retry.ClassTransient}, retry.ReasonDeadlineExceeded},
		{"permanent", rules(3, ""), retry.Facts{TaskID: 1, Attempt: 1, Elapsed: 5 * s, Deadline: 30 * s, Class: retry.ClassPermanent}, retry.ReasonFailPermanent},
		{"unknown", rules(3, ""), retry.Facts{TaskID: 1, Attempt: 1, Elapsed: 5 * s, Deadline: 30 * s, Class: retry.ClassUnknown}, retry.ReasonManualReview},

		{"permanent before deadline", rules(3, ""), retry.Facts{Attempt: 3, Elapsed: 31 * s, Deadline: 30 * s, Class: retry.ClassPermanent}, retry.ReasonFailPermanent},
		{"unknown before deadline", rules(3, ""), retry.Facts{Attempt: 3, Elapsed: 31 * s, Deadline: 30 * s, Class: retry.ClassUnknown}, retry.ReasonManualReview},
		{"deadline before attempts", rules(3, ""), retry.Facts{Attempt: 3, Elapsed: 30 * s, Deadline: 30 * s, Class: retry.ClassTransient}, retry.ReasonDeadlineExceeded},
		{"next time after the deadline", rules(3, ""), retry.Facts{Attempt: 1, Elapsed: 29*s + 500*time.Millisecond, Deadline: 30 * s, Class: retry.ClassTransient}, retry.ReasonDeadlineExceeded},
		{"Retry-After past the deadline", rules(3, ""), retry.Facts{Attempt: 1, Deadline: 30 * s, RetryAfter: 31 * s, Class: retry.ClassTransient}, retry.ReasonDeadlineExceeded},
		{"no deadline", rules(3, ""), retry.Facts{Attempt: 1, Elapsed: 1000 * time.Hour, Class: retry.ClassTransient}, retry.ReasonScheduleRetry},
		{"no class counts as unknown", rules(3, ""), retry.Facts{Attempt: 1}, retry.ReasonManualReview},
		{"unknown, repeating is safe", rules(3, retry.UnknownRepeat), retry.Facts{Attempt: 1, Class: retry.ClassUnknown}, retry.ReasonScheduleRetry},
		{"unknown, the other side is asked", rules(3, retry.UnknownAsk), retry.Facts{Attempt: 1, Class: retry.ClassUnknown}, retry.ReasonScheduleRetry},
		{"inline run", rules(1, ""), retry.Facts{Attempt: 0, Class: retry.ClassTransient}, retry.ReasonScheduleRetry},

		{"crash is unknown", rules(3, ""), retry.Facts{Attempt: 1, Crashes: 1, Crashed: true, Class: retry.ClassTransient}, retry.ReasonManualReview},
		{"crash does not burn the only attempt", rules(1, retry.UnknownRepeat), retry.Facts{Attempt: 1, Uncharged: 1, Crashes: 1, Crashed: true}, retry.ReasonScheduleRetry},
		{"a person's retry grants a new budget", rules(3, ""), retry.Facts{Attempt: 5, Uncharged: 3, Class: retry.ClassTransient}, retry.ReasonScheduleRetry},
		{"third crash", rules(9, retry.UnknownRepeat), retry.Facts{Attempt: 3, Crashes: 3, Crashed: true}, retry.ReasonCrashLoop},
		{"old crashes do not stop a failure", rules(9, retry.UnknownRepeat), retry.Facts{Attempt: 4, Crashes: 3, Class: retry.ClassTransient}, retry.ReasonScheduleRetry},
	} {
		got := retry.Decide(c.r, c.f)
		if got.Reason != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.Reason, c.want)
		}
		wantStatus := map[retry.Reason]retry.Status{
			retry.ReasonScheduleRetry: retry.StatusWait, retry.ReasonManualReview: retry.StatusManualReview, retry.ReasonCrashLoop: retry.StatusManualReview,
		}[c.want]
		if wantStatus == "" {
			wantStatus = retry.StatusFailed
		}
		if got.Status != wantStatus {
			t.Errorf("%s: status %s, want %s", c.name, got.Status, wantStatus)
		}
		if (got.Delay > 0) != (got.Reason == retry.ReasonScheduleRetry) {
			t.Errorf("%s: delay %v with %s", c.name, got.Delay, got.Reason)
		}
	}
}

func TestDecideHonoursRetryAfter(t *testing.T) {
	r := rules(3, "")
	f := retry.Facts{TaskID: 7, Attempt: 1, Class: retry.ClassTransient, RetryAfter: 5 * time.Second}
	if d := retry.Decide(r, f); d.Delay != r.Grid.Up(5*time.Second) {
		t.Errorf("delay %v, want Retry-After's 5 s on the grid", d.Delay)
	}
	f.RetryAfter = time.Millisecond
	if d := retry.Decide(r, f); d.Delay != r.Grid.Up(d.Jittered) || d.Jittered < time.Second {
		t.Errorf("delay %v, want the backoff %v on the grid", d.Delay, d.Jittered)
	}
}

// Whatever the facts, the answer is the same again, is legal, and never ends
// after the deadline.
func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := retry.Rules{
			Policy:     anyPolicy(t),
			Unknown:    rapid.SampledFrom([]retry.UnknownMode{"", "review", "repeat", "ask"}).Draw(t, "unknown"),
			MaxCrashes: rapid.IntRange(0, 5).Draw(t, "max crashes"),
			Grid:       rules(1, "").Grid,
		}
		f := retry.Facts{
			TaskID: rapid.Int64().Draw(t, "id"), Attempt: rapid.IntRange(0, 1_000_000).Draw(t, "attempt"),
			Uncharged: rapid.IntRange(0, 5).Draw(t, "uncharged"),
			Crashes:   rapid.IntRange(0, 5).Draw(t, "crashes"), Crashed: rapid.Bool().Draw(t, "crashed"),
			Elapsed:    time.Duration(rapid.Int64Min(0).Draw(t, "elapsed")),
			Deadline:   time.Duration(rapid.Int64Min(0).Draw(t, "deadline")),
			Class:      rapid.SampledFrom([]retry.Class{"", "permanent", "transient", "unknown"}).Draw(t, "class"),
			RetryAfter: time.Duration(rapid.Int64().Draw(t, "retry after")),
		}
		d := retry.Decide(r, f)
		if d != retry.Decide(r, f) {
			t.Fatal("the same facts gave another decision")
		}
		if !retry.StatusExecuting.CanBecome(d.Status) {
			t.Fatalf("EXECUTING cannot become %s", d.Status)
		}
		if d.Reason == retry.ReasonScheduleRetry {
			if d.Delay < d.Jittered || d.Delay < d.RetryAfter {
				t.Fatalf("early: %+v", d)
			}
			if f.Deadline > 0 && (f.Elapsed >= f.Deadline || d.Delay > f.Deadline-f.Elapsed) {
				t.Fatalf("next attempt after the deadline: %+v", d)
			}
		}
	})
}

func TestMarks(t *testing.T) {
	base := errors.New("boom")
	for _, c := range []struct {
		name string
		err  error
		want retry.Class
	}{
		{"none", base, retry.ClassNone},
		{"anywhere in the chain", fmt.Errorf("a: %w", fmt.Errorf("b: %w", retry.Permanent(base))), retry.ClassPermanent},
		{"outermost wins along a chain", retry.Transient(fmt.Errorf("b: %w", retry.Permanent(base))), retry.ClassTransient},
		{"unknown wins in a join", errors.Join(retry.Permanent(base), retry.Unknown(base), retry.Transient(base)), retry.ClassUnknown},
		{"After says nothing of the class", retry.After(time.Second, base), retry.ClassNone},
		{"After keeps the class", retry.After(time.Second, retry.Transient(base)), retry.ClassTransient},
	} {
		if got := retry.MarkedClass(c.err); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if !errors.Is(c.err, base) || c.err.Error() == "" {
			t.Errorf("%s: lost its cause", c.name)
		}
	}
	d, ok := retry.RetryAfter(fmt.Errorf("x: %w", errors.Join(retry.After(time.Second, base), retry.After(time.Minute, base))))
	if !ok || d != time.Minute {
		t.Errorf("RetryAfter: %v %v, want the longest", d, ok)
	}
	if _, ok := retry.RetryAfter(retry.Transient(base)); ok {
		t.Error("RetryAfter found one where none is")
	}
	if retry.Permanent(nil) != nil || retry.After(1, nil) != nil {
		t.Error("a marked nil is not nil")
	}
}

func TestClassOf(t *testing.T) {
	boom := errors.New("boom")
	safe := retry.Scene{Name: "a", Unknown: retry.UnknownRepeat}
	unsafe := retry.Scene{Name: "a"}
	classed := retry.Scene{Name: "a", Classify: func(error) retry.Class { return retry.ClassPermanent }}
	for _, c := range []struct {
		s    retry.Scene
		err  error
		want retry.Class
	}{
		{safe, boom, retry.ClassTransient}, {unsafe, boom, retry.ClassUnknown}, {classed, boom, retry.ClassPermanent},
		{classed, retry.Transient(boom), retry.ClassTransient}, {safe, retry.Unknown(boom), retry.ClassUnknown}, {safe, nil, retry.ClassNone},
	} {
		if got := c.s.ClassOf(c.err); got != c.want {
			t.Errorf("%+v %v: %q, want %q", c.s, c.err, got, c.want)
		}
	}
}

func TestSceneCheckNamesEveryField(t *testing.T) {
	err := retry.Scene{Name: "No Good", Unknown: "perhaps", MaxCrashes: -1, Timeout: -1, Concurrency: -1}.Check()
	for _, field := range []string{"scene:", "unknown:", "max_crashes:", "timeout:", "concurrency:"} {
		if err == nil || !errors.Is(err, retry.ErrInvalid) || !contains(err.Error(), field) {
			t.Errorf("%s is not named in %v", field, err)
		}
	}
	if err := (retry.Scene{Name: "payment.refund"}).Check(); err != nil {
		t.Error(err)
	}
}
