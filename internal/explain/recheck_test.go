package explain_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// life writes a journal as the pipeline does.
type life struct {
	j                  explain.Journal
	now                time.Time
	attempt, uncharged int
	crashes            int
	phase              retry.Phase
	tries              int
}

const taskID = 42

func newLife(rules retry.Rules) *life {
	created := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	limit := created.Add(time.Hour)
	return &life{
		j: explain.Journal{
			Task:  retry.Task{ID: taskID, Service: "shop", Scene: "mail.send", Status: retry.StatusWait, CreatedAt: created, DeadlineAt: &limit},
			Rules: map[int]retry.Rules{1: rules},
		},
		now: created,
	}
}

func (l *life) decide(f retry.Facts) {
	l.now = l.now.Add(time.Second)
	f.TaskID, f.Attempt, f.Elapsed, f.Deadline = taskID, l.attempt, l.now.Sub(l.j.Task.CreatedAt), time.Hour
	f.Uncharged, f.Crashes = l.uncharged, l.crashes
	d := retry.Decide(l.j.Rules[1], f)
	from := retry.StatusExecuting
	if l.attempt == 0 {
		from = ""
	}
	l.event(persistence.Event{From: from, To: d.Status, Reason: d.Reason, Class: f.Class, PolicyVersion: 1, Facts: &f, Decision: &d})
	l.now = l.now.Add(d.Delay)
}

func (l *life) event(e persistence.Event) {
	e.At, e.Attempt = l.now, l.attempt
	l.j.Events = append(l.j.Events, e)
	t := &l.j.Task
	t.Status, t.StopReason, t.Attempt = e.To, "", l.attempt
	if e.To == retry.StatusFailed || e.To == retry.StatusManualReview || e.To == retry.StatusCancelled {
		t.StopReason = e.Reason
	}
}

// died: the publisher of a record went away before its call ended.
func (l *life) died() {
	l.crashes++ // attempt 0 is charged to nobody, so nothing is uncharged
	l.decide(retry.Facts{Class: retry.ClassUnknown, Crashed: true})
	l.j.Events[len(l.j.Events)-1].From = retry.StatusInit
}

func (l *life) inline(class retry.Class) { l.decide(retry.Facts{Class: class}) }

func (l *life) fails(class retry.Class, after time.Duration) {
	l.attempt++
	l.decide(retry.Facts{Class: class, RetryAfter: after})
}

func (l *life) crash() {
	l.attempt++
	l.uncharged++
	l.crashes++
	l.decide(retry.Facts{Class: retry.ClassUnknown, Crashed: true})
}

func (l *life) person(to retry.Status, reason retry.Reason) {
	l.now = l.now.Add(time.Minute)
	l.event(persistence.Event{From: l.j.Task.Status, To: to, Reason: reason, Actor: "ada"})
	if reason == retry.ReasonOperatorRetry {
		l.uncharged, l.crashes = l.attempt, 0
		l.j.Task.DeadlineAt = new(l.now.Add(time.Hour))
	}
}

func (l *life) succeeds() {
	l.j.Task.Attempt++
	l.j.Task.Status, l.j.Task.FinishedAt = retry.StatusSuccess, &l.now
}

func rules(mode retry.UnknownMode) retry.Rules {
	return retry.Scene{
		Name: "mail.send", Unknown: mode, Policy: retry.Policy{Kind: retry.Exponential, Base: time.Second, Cap: time.Minute, MaxAttempts: 5},
	}.Rules(topology.Grid())
}

// troubled: the inline run, an error, a Retry-After, a crash, and success.
func troubled() *life {
	l := newLife(rules(retry.UnknownRepeat))
	l.inline(retry.ClassTransient)
	l.fails(retry.ClassTransient, 0)
	l.fails(retry.ClassTransient, 30*time.Second)
	l.crash()
	l.succeeds()
	return l
}

// recorded: a record whose publisher died, an error, a crash, and success.
func recorded() *life {
	l := newLife(rules(retry.UnknownRepeat))
	l.died()
	l.fails(retry.ClassTransient, 0)
	l.crash()
	l.succeeds()
	return l
}

// step is a change of phase within the attempt that runs.
func (l *life) step(to retry.Phase, reason retry.Reason) {
	l.now = l.now.Add(time.Second)
	l.attempt++
	l.event(persistence.Event{From: retry.StatusExecuting, To: retry.StatusExecuting, Reason: reason, Phase: to})
	l.attempt--
	l.phase, l.tries = to, 0
}

// ends is an attempt that ended in a phase; idle where it ran no Execute.
func (l *life) ends(phase retry.Phase, answer retry.Answer, class retry.Class, idle bool) {
	l.attempt++
	if idle {
		l.uncharged++
	}
	l.tries++
	if phase != l.phase {
		l.tries = 1
	}
	l.decide(retry.Facts{Class: class, Phase: phase, Answer: answer, Tries: l.tries, Idle: idle})
	e := &l.j.Events[len(l.j.Events)-1]
	e.Phase = e.Decision.Phase.OrExecute()
	if e.Phase != phase {
		l.tries = 0
	}
	l.phase = e.Phase
}

// asked: an unknown outcome, two answers that it is pending, a word that it took effect, a callback that fails once, success.
func asked() *life {
	l := newLife(rules(retry.UnknownAsk))
	l.fails(retry.ClassUnknown, 0)
	l.phase = retry.PhaseQuery
	l.ends(retry.PhaseQuery, retry.Pending, retry.ClassTransient, true)
	l.ends(retry.PhaseQuery, retry.Pending, retry.ClassTransient, true)
	l.step(retry.PhaseCallback, retry.ReasonTookEffect)
	l.ends(retry.PhaseCallback, "", retry.ClassTransient, true)
	l.succeeds()
	return l
}

// redone: an unknown outcome asked about at once and pending, then a word that nothing happened, and an Execute that fails.
func redone() *life {
	l := newLife(rules(retry.UnknownAsk))
	l.ends(retry.PhaseQuery, retry.Pending, retry.ClassTransient, false)
	l.step(retry.PhaseExecute, retry.ReasonNoEffect)
	l.fails(retry.ClassTransient, 0)
	l.succeeds()
	return l
}

// reviewed: a crash, a person's retry, an error, a crash again and a person's word.
func reviewed() *life {
	l := newLife(rules(retry.UnknownReview))
	l.fails(retry.ClassTransient, 0)
	l.crash()
	l.person(retry.StatusWait, retry.ReasonOperatorRetry)
	l.j.Rules[2] = l.j.Rules[1]
	return l
}

func TestJournalsThatHold(t *testing.T) {
	exhausted := newLife(rules(retry.UnknownRepeat))
	for range 5 {
		exhausted.fails(retry.ClassTransient, 0)
	}
	late := newLife(rules(retry.UnknownRepeat))
	late.fails(retry.ClassTransient, 2*time.Hour)
	loop := newLife(rules(retry.UnknownRepeat))
	for range 3 {
		loop.crash()
	}
	refused := newLife(rules(retry.UnknownRepeat))
	refused.fails(retry.ClassPermanent, 0)
	refused.person(retry.StatusSuccess, retry.ReasonOperatorSucceed)
	onDesk := newLife(rules(retry.UnknownReview))
	onDesk.inline(retry.ClassUnknown)
	madeDue := newLife(rules(retry.UnknownRepeat))
	madeDue.fails(retry.ClassTransient, 0)
	madeDue.person(retry.StatusWait, retry.ReasonOperatorRetry)
	running := newLife(rules(retry.UnknownRepeat))
	running.j.Task.Status, running.j.Task.Attempt = retry.StatusExecuting, 1

	for name, l := range map[string]*life{
		"troubled": troubled(), "reviewed": reviewed(), "recorded": recorded(), "exhausted": exhausted, "late": late, "crash loop": loop, "refused": refused,
		"asked": asked(), "redone": redone(),
		"for a person": onDesk, "made due": madeDue, "no rows": newLife(rules("")), "running": running,
	} {
		r := explain.Recheck(l.j)
		if !r.Matches || len(r.Rows) != len(l.j.Events) {
			t.Errorf("%s: %+v", name, r)
		}
		for i, row := range r.Rows {
			if len(row.Problems) > 0 || row.Decided != (l.j.Events[i].Decision != nil) || row.Decided != (row.Recomputed != nil) {
				t.Errorf("%s, row %d: %+v", name, i, row)
			}
		}
	}
	if got := explain.Versions(troubled().j.Events); !slices.Equal(got, []int{1}) {
		t.Errorf("versions %v", got)
	}
	if p := explain.Recheck(late.j).Rows[0].Parts; p == nil || !p.TooLate || p.Delay < 2*time.Hour {
		t.Errorf("a retry that comes too late: parts %+v", p)
	}
	if p := explain.Recheck(loop.j).Rows[2].Parts; p != nil {
		t.Errorf("a stop has parts %+v", p)
	}
}

func TestParts(t *testing.T) {
	r := explain.Recheck(troubled().j)
	inline, after, crash := r.Rows[0].Parts, r.Rows[2].Parts, r.Rows[3].Parts
	if inline.Charged != 0 || inline.Ceiling != time.Second || inline.HashInput != "42:0" || inline.Formula != "EXPONENTIAL: 1s × 2^0, at most 1m0s" {
		t.Errorf("inline: %+v", inline)
	}
	if after.RetryAfter != 30*time.Second || after.Delay != topology.Grid().Up(30*time.Second) {
		t.Errorf("retry after: %+v", after)
	}
	// The crash is attempt 3 and charged like 2; its hash takes its own number.
	if crash.Charged != 2 || crash.HashInput != "42:3" || crash.Ceiling != 2*time.Second {
		t.Errorf("crash: %+v", crash)
	}
	for _, row := range r.Rows {
		p := row.Parts
		if want := float64(p.Ceiling) * (0.5 + 0.5*p.Fraction); math.Abs(want-float64(p.Jittered)) > float64(p.Unit) {
			t.Errorf("attempt %d: the parts make %v, not %v", row.Attempt, time.Duration(want), p.Jittered)
		}
	}
	for _, tt := range []struct {
		policy retry.Policy
		want   string
	}{
		{retry.Policy{Kind: retry.Fixed, Base: time.Second, MaxAttempts: 9, NoJitter: true}, "FIXED: 1s, at most 1h0m0s"},
		{retry.Policy{Kind: retry.Linear, Base: time.Second, MaxAttempts: 9, NoJitter: true}, "LINEAR: 1s × 1, at most 1h0m0s"},
		{retry.Policy{Kind: retry.Custom, Delays: []time.Duration{time.Second, time.Minute}, MaxAttempts: 9, NoJitter: true}, "CUSTOM: number 1 of 2 delays, at most 1h0m0s"},
	} {
		l := newLife(retry.Scene{Name: "a", Policy: tt.policy}.Rules(topology.Grid()))
		l.fails(retry.ClassTransient, 0)
		p := explain.Recheck(l.j).Rows[0].Parts
		if p.Formula != tt.want || p.HashInput != "" || p.Jittered != p.Ceiling {
			t.Errorf("got %+v, want %s", p, tt.want)
		}
	}
}

// Whatever the rules and facts: what Decide says matches, and its parts make its delay.
func TestPartsMakeTheDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		second := func(name string, limit int64) time.Duration {
			return time.Duration(rapid.Int64Range(1, limit).Draw(t, name)) * time.Millisecond
		}
		l := newLife(retry.Scene{Name: "a", Policy: retry.Policy{
			Kind: rapid.SampledFrom([]retry.Kind{retry.Fixed, retry.Linear, retry.Exponential}).Draw(t, "kind"), Base: second("base", 1e6),
			MaxAttempts: 100, NoJitter: rapid.Bool().Draw(t, "nojitter"),
		}, Unknown: retry.UnknownRepeat, MaxCrashes: 100}.Rules(topology.Grid()))
		for range rapid.IntRange(1, 12).Draw(t, "attempts") {
			if rapid.Bool().Draw(t, "crash") {
				l.crash()
			} else {
				l.fails(retry.ClassTransient, second("after", 1e6))
			}
			if l.j.Task.Status != retry.StatusWait {
				break
			}
		}
		r := explain.Recheck(l.j)
		if !r.Matches {
			t.Fatalf("%+v", r)
		}
		for _, row := range r.Rows {
			p := row.Parts
			if p == nil {
				continue
			}
			if p.TooLate != (row.Recorded.Status != retry.StatusWait) || p.Delay != topology.Grid().Up(max(p.Jittered, p.RetryAfter)) {
				t.Fatalf("%+v of %+v", p, row)
			}
		}
	})
}

func TestTampered(t *testing.T) {
	// Each row: how to tamper with a journal, which row is to be named (-1: the whole) and by which words.
	for name, tt := range map[string]struct {
		life   func() *life
		tamper func(j *explain.Journal)
		row    int
		want   string
	}{
		"delay":        {troubled, func(j *explain.Journal) { j.Events[1].Decision.Delay += time.Millisecond }, 1, "delay: recorded "},
		"ceiling":      {troubled, func(j *explain.Journal) { j.Events[1].Decision.Ceiling = time.Hour }, 1, "ceiling: recorded 1h0m0s, recomputed 1s"},
		"jitter":       {troubled, func(j *explain.Journal) { j.Events[1].Decision.Jittered = 1 }, 1, "jittered: recorded 1ns"},
		"retry after":  {troubled, func(j *explain.Journal) { j.Events[2].Decision.RetryAfter = 0 }, 2, "retry after: recorded 0s, recomputed 30s"},
		"asked":        {troubled, func(j *explain.Journal) { j.Events[2].Facts.RetryAfter = 0 }, 2, "delay: recorded 3"},
		"reason":       {troubled, func(j *explain.Journal) { j.Events[1].Reason = retry.ReasonFailPermanent }, 1, "the row's reason is fail_permanent, its decision's schedule_retry"},
		"state":        {troubled, func(j *explain.Journal) { j.Events[1].To = retry.StatusFailed }, 1, "the row's state is FAILED, its decision's WAIT"},
		"state, both":  {troubled, func(j *explain.Journal) { j.Events[1].To, j.Events[1].Decision.Status = "FAILED", "FAILED" }, 1, "state: recorded FAILED, recomputed WAIT"},
		"reason, both": {troubled, func(j *explain.Journal) { j.Events[1].Reason, j.Events[1].Decision.Reason = "x", "x" }, 1, "reason: recorded x, recomputed schedule_retry"},
		"task":         {troubled, func(j *explain.Journal) { j.Events[1].Facts.TaskID = 7 }, 1, "the facts are those of task 7"},
		"attempt":      {troubled, func(j *explain.Journal) { j.Events[1].Attempt = 2 }, 1, "the facts are those of attempt 1, the row's is 2"},
		"order":        {troubled, func(j *explain.Journal) { j.Events[1], j.Events[2] = j.Events[2], j.Events[1] }, 2, "attempt 1 comes after attempt 2"},
		"class":        {troubled, func(j *explain.Journal) { j.Events[1].Class = retry.ClassPermanent }, 1, "the facts' class is transient, the row's permanent"},
		"crashes":      {troubled, func(j *explain.Journal) { j.Events[3].Facts.Crashes = 0 }, 3, "the facts count 0 runs that ended without a word, the journal has 1"},
		"uncharged":    {troubled, func(j *explain.Journal) { j.Events[2].Facts.Uncharged = 1 }, 2, "the facts count 1 attempts that were not charged, by the journal there are 0"},
		"deadline":     {troubled, func(j *explain.Journal) { j.Events[2].Facts.Deadline *= 2 }, 2, "the facts' deadline is 2h0m0s"},
		"no decision":  {troubled, func(j *explain.Journal) { j.Events[1].Decision = nil }, 1, "cannot be checked: no decision is recorded"},
		"no facts":     {troubled, func(j *explain.Journal) { j.Events[1].Facts = nil }, 1, "cannot be checked: no facts are recorded"},
		"neither":      {troubled, func(j *explain.Journal) { j.Events[1].Facts, j.Events[1].Decision = nil, nil }, 1, "no facts are recorded"},
		"no version":   {troubled, func(j *explain.Journal) { j.Events[1].PolicyVersion = 0 }, 1, "cannot be checked: no policy version is recorded"},
		"version gone": {troubled, func(j *explain.Journal) { j.Events[1].PolicyVersion = 9 }, 1, "cannot be checked: policy version 9 of mail.send is missing"},
		"rules": {troubled, func(j *explain.Journal) {
			r := j.Rules[1]
			r.Policy.Base = 5 * time.Second
			j.Rules[1] = r
		}, 1, "ceiling: recorded 1s, recomputed 5s"},
		"fewer attempts": {troubled, func(j *explain.Journal) {
			r := j.Rules[1]
			r.Policy.MaxAttempts = 1
			j.Rules[1] = r
		}, 1, "reason: recorded schedule_retry, recomputed attempts_exhausted"},
		"row gone":         {troubled, func(j *explain.Journal) { j.Events = slices.Delete(j.Events, 3, 4); j.Task.Status = retry.StatusFailed }, -1, "the task is FAILED, its journal ends in WAIT"},
		"crash row gone":   {func() *life { l := troubled(); l.crash(); return l }, func(j *explain.Journal) { j.Events = slices.Delete(j.Events, 3, 4) }, 3, "the journal has 1"},
		"person's row":     {reviewed, func(j *explain.Journal) { j.Events = slices.Delete(j.Events, 2, 3) }, -1, "the task is WAIT, its journal ends in MANUAL_REVIEW"},
		"illegal change":   {reviewed, func(j *explain.Journal) { j.Events[2].From = retry.StatusSuccess }, 2, "a task that is SUCCESS cannot become WAIT"},
		"broken chain":     {reviewed, func(j *explain.Journal) { j.Events[2].From = retry.StatusCancelled }, 2, "the row before ends in MANUAL_REVIEW, this one begins with CANCELLED"},
		"nothing at first": {reviewed, func(j *explain.Journal) { j.Events[1].From = "" }, 1, "a task that is (none) cannot become MANUAL_REVIEW"},
		"stop reason": {func() *life { l := newLife(rules("")); l.fails(retry.ClassPermanent, 0); return l },
			func(j *explain.Journal) { j.Task.StopReason = retry.ReasonCrashLoop }, -1, "the task stopped for crash_loop, its journal says fail_permanent"},
		"attempts back":  {reviewed, func(j *explain.Journal) { j.Task.Attempt = 1 }, -1, "the task has had 1 attempts, its journal 2"},
		"phase":          {asked, func(j *explain.Journal) { j.Events[1].Facts.Phase = retry.PhaseExecute }, 1, "the facts' phase is execute, the journal leaves the task in query"},
		"phase of a row": {asked, func(j *explain.Journal) { j.Events[1].Phase = retry.PhaseCallback }, 1, "the row's phase is callback, its decision's query"},
		"phase, both": {asked, func(j *explain.Journal) {
			j.Events[1].Phase, j.Events[1].Decision.Phase = retry.PhaseCallback, retry.PhaseCallback
		}, 1, "phase: recorded callback, recomputed query"},
		"tries":          {asked, func(j *explain.Journal) { j.Events[2].Facts.Tries = 1 }, 2, "the facts count 1 tries of query, by the journal there are 2"},
		"redone unasked": {redone, func(j *explain.Journal) { j.Events = slices.Delete(j.Events, 1, 2) }, 1, "the facts' phase is execute, the journal leaves the task in query"},
		"not idle":       {asked, func(j *explain.Journal) { j.Events[1].Facts.Idle = false }, 1, "the facts count 1 attempts that were not charged, by the journal there are 0"},
		"no journal":     {func() *life { return newLife(rules("")) }, func(j *explain.Journal) { j.Task.Status = retry.StatusFailed }, -1, "the task is FAILED, its journal ends in (none)"},
	} {
		t.Run(name, func(t *testing.T) {
			l := tt.life()
			if r := explain.Recheck(l.j); !r.Matches {
				t.Fatalf("before: %+v", r)
			}
			tt.tamper(&l.j)
			r := explain.Recheck(l.j)
			problems := r.Problems
			if tt.row >= 0 {
				problems = r.Rows[tt.row].Problems
			}
			if all := strings.Join(problems, "\n"); r.Matches || !strings.Contains(all, tt.want) {
				t.Errorf("matches: %v\nrow %d: %s\nwant: %s", r.Matches, tt.row, all, tt.want)
			}
		})
	}
}

// A task that a person retried got new attempts and new time.
func TestRetryByHandGrantsABudget(t *testing.T) {
	l := reviewed()
	l.now = l.now.Add(2 * time.Second)
	l.attempt++
	f := retry.Facts{
		TaskID: taskID, Attempt: 3, Uncharged: 2, Elapsed: l.now.Sub(l.j.Task.CreatedAt), Deadline: l.j.Task.DeadlineAt.Sub(l.j.Task.CreatedAt), Class: retry.ClassTransient,
	}
	d := retry.Decide(l.j.Rules[1], f)
	l.event(persistence.Event{From: retry.StatusExecuting, To: d.Status, Reason: d.Reason, Class: f.Class, PolicyVersion: 1, Facts: &f, Decision: &d})
	r := explain.Recheck(l.j)
	if !r.Matches || r.Rows[3].Parts.Charged != 1 || r.Rows[3].Parts.HashInput != "42:3" {
		t.Errorf("%+v", r)
	}
}
