package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

var epoch = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

// life makes the changes of a row, each from the side before.
type life struct {
	now     side
	changes []change
}

func newLife() *life {
	l := &life{}
	l.next(0, "publisher", side{Status: retry.StatusWait, Phase: retry.PhaseExecute})
	l.changes[0].Op = "INSERT"
	return l
}

func (l *life) next(when float64, writer string, to side) *life {
	l.changes = append(l.changes, change{
		ID: int64(len(l.changes) + 1), Task: 7, At: at(when), Op: "UPDATE", Writer: writer, Scene: "chaos.review", Key: "k", Old: l.now, New: to,
	})
	l.now = to
	return l
}

func (l *life) claim(when float64, who, token string) *life {
	s := l.now
	s.Status, s.Token, s.By, s.Lease, s.Attempt = retry.StatusExecuting, token, who, at(when+2), s.Attempt+1
	return l.next(when, who, s)
}

func (l *life) renew(when float64, who string) *life {
	s := l.now
	s.Lease = at(when + 2)
	return l.next(when, who, s)
}

func (l *life) end(when float64, who string, to retry.Status) *life {
	s := l.now
	s.Status, s.Lease = to, time.Time{}
	return l.next(when, who, s)
}

func (l *life) expire(when float64, who string) *life {
	s := l.now
	s.Status, s.Lease, s.Token, s.Crashes, s.Uncharged = retry.StatusWait, time.Time{}, "mark", s.Crashes+1, s.Uncharged+1
	return l.next(when, who, s)
}

func (l *life) release(when float64, who string) *life {
	s := l.now
	s.Status, s.Lease, s.Token, s.Attempt = retry.StatusWait, time.Time{}, "mark", s.Attempt-1
	return l.next(when, who, s)
}

func effectOf(run string, attempt int, when float64, who string) call {
	return call{callHead: callHead{Scene: "chaos.review", Key: "k", Run: run, Attempt: attempt, Process: who, Step: stepExecute}, Begin: at(when), Effect: at(when)}
}

func TestCheckTask(t *testing.T) {
	illegal := side{Status: retry.StatusManualReview}
	for name, tt := range map[string]struct {
		life  *life
		calls []call
		want  string // empty: nothing
	}{
		"a good life": {newLife().claim(1, "a", "A").renew(2, "a").end(3, "a", retry.StatusWait).claim(4, "b", "B").release(4.1, "b").claim(5, "b", "C").
			expire(8, "a").claim(9, "a", "D").end(10, "a", retry.StatusSuccess), []call{effectOf("D", 3, 9.5, "a")}, ""},
		"a person": {newLife().claim(1, "a", "A").end(2, "a", retry.StatusManualReview).end(3, operator, retry.StatusWait).claim(4, "b", "B").
			end(5, "b", retry.StatusSuccess), []call{effectOf("A", 1, 1.5, "a"), effectOf("B", 2, 4.5, "b")}, ""},
		// The paused worker of the first claim acts last: the person's word came between the claims.
		"a late act": {newLife().claim(1, "a", "A").end(2, "a", retry.StatusManualReview).end(3, operator, retry.StatusWait).claim(4, "b", "B").
			end(5, "b", retry.StatusSuccess), []call{effectOf("B", 2, 4.5, "b"), effectOf("A", 1, 6, "a")}, ""},
		"illegal":            {newLife().next(1, "a", illegal), nil, "WAIT became MANUAL_REVIEW"},
		"success moves":      {newLife().claim(1, "a", "A").end(2, "a", retry.StatusSuccess).end(3, operator, retry.StatusWait), nil, "SUCCESS became WAIT"},
		"stranger ends":      {newLife().claim(1, "a", "A").end(2, "b", retry.StatusSuccess), nil, "fencing: the claim of a was ended as SUCCESS by b"},
		"stranger renews":    {newLife().claim(1, "a", "A").renew(2, "b"), nil, "fencing: the lease of a was renewed by b"},
		"ended too soon":     {newLife().claim(1, "a", "A").expire(2, "b"), nil, "had 1s left"},
		"two leases":         {newLife().claim(1, "a", "A").claim(2, "b", "B"), nil, "two valid leases"},
		"a token comes back": {newLife().claim(1, "a", "A").end(2, "a", retry.StatusWait).claim(3, "a", "A"), nil, "was over and holds again"},
		"a lost claim again": {newLife().claim(1, "a", "A").expire(4, "b").claim(5, "a", "A").end(6, "a", retry.StatusSuccess), []call{effectOf("A", 2, 5.5, "a")}, ""},
		"a used claim again": {newLife().claim(1, "a", "A").expire(4, "b").claim(5, "a", "A"), []call{effectOf("A", 1, 1.5, "a")}, "was over and holds again"},
		"by another, again":  {newLife().claim(1, "a", "A").expire(4, "b").claim(5, "b", "A"), nil, "was over and holds again"},
		"over the budget": {newLife().claim(1, "a", "A").end(1, "a", "WAIT").claim(2, "a", "B").end(2, "a", "WAIT").claim(3, "a", "C").end(3, "a", "WAIT").
			claim(4, "a", "D").end(4, "a", "WAIT").claim(5, "a", "E").end(5, "a", "WAIT").claim(6, "a", "F"), nil, "the budget is 5 attempts"},
		"crash loop": {newLife().claim(0, "a", "A").expire(3, "b").claim(4, "a", "B").expire(7, "b").claim(8, "a", "C").expire(11, "b").claim(12, "a", "D"),
			nil, "claimed after 3 crashes"},
		"effects without a word": {newLife().claim(1, "a", "A").end(2, "a", retry.StatusWait).claim(3, "b", "B"),
			[]call{effectOf("A", 1, 1.5, "a"), effectOf("B", 2, 3.5, "b")}, "two effects (A and B)"},
		"twice under one claim": {newLife().claim(1, "a", "A"), []call{effectOf("A", 1, 1.5, "a"), effectOf("A", 1, 1.6, "a")}, "two calls of execute under the one claim A"},
		"no such claim":         {newLife().claim(1, "a", "A"), []call{effectOf("X", 1, 1.5, "a")}, "under the claim X, which was never that"},
		"a borrowed claim":      {newLife().claim(1, "a", "A"), []call{effectOf("A", 1, 1.5, "b")}, "called as attempt 1 of b"},
		"inline twice":          {&life{}, []call{effectOf("inline:1", 0, 1, "p"), effectOf("inline:2", 0, 2, "p")}, "two effects (inline:1 and inline:2)"},
	} {
		t.Run(name, func(t *testing.T) {
			found := checkTask(history{tt.life.changes, tt.calls})
			ok := slices.ContainsFunc(found, func(v violation) bool { return strings.Contains(v.What, tt.want) })
			if tt.want == "" && len(found) > 0 || tt.want != "" && !ok {
				t.Errorf("found %v, want %q", found, tt.want)
			}
		})
	}
}

// of makes a call one for another step of the scene that asks, or for its Execute.
func (c call) of(step, said string) call {
	c.Scene, c.Step, c.Said = "chaos.ask", step, said
	if step != stepExecute {
		c.Effect = time.Time{}
	}
	return c
}

func TestCheckTaskThatAsks(t *testing.T) {
	twice := func(said string) []call {
		return []call{effectOf("A", 1, 1.5, "a").of(stepExecute, ""), effectOf("B", 2, 4.1, "b").of(stepQuery, said), effectOf("B", 2, 4.5, "b").of(stepExecute, "")}
	}
	two := func() *life { return newLife().claim(1, "a", "A").expire(3, "b").claim(4, "b", "B") }
	further := two()
	further.next(4.2, "a", side{Status: retry.StatusExecuting, Token: "B", By: "b", Lease: at(6), Attempt: 2, Crashes: 1, Uncharged: 1, Phase: retry.PhaseCallback})
	many := newLife()
	var calls []call
	for i := range 6 {
		token := string(rune('A' + i))
		many.now.Phase = retry.PhaseQuery // else the claim itself is refused
		many.claim(float64(i), "a", token).end(float64(i)+0.5, "a", retry.StatusWait)
		calls = append(calls, effectOf(token, i+1, float64(i)+0.1, "a").of(stepQuery, string(retry.NoEffect)), effectOf(token, i+1, float64(i)+0.2, "a").of(stepExecute, ""))
	}
	for name, tt := range map[string]struct {
		life  *life
		calls []call
		want  string
	}{
		"Query's word":      {two(), twice(string(retry.NoEffect)), ""},
		"no word":           {two(), twice(string(retry.Pending)), "two effects (A and B) and neither"},
		"a stranger's step": {further, nil, "fencing: the task of b was taken a step further by a"},
		"too many executes": {many, calls, "attempt 6 is one more that called"},
		"executed after it was booked": {two(), []call{effectOf("A", 1, 1.5, "a").of(stepCallback, "booked"), effectOf("B", 2, 4.5, "b").of(stepExecute, "")},
			"executed as B although it was booked as A"},
	} {
		t.Run(name, func(t *testing.T) {
			found := checkTask(history{tt.life.changes, tt.calls})
			ok := slices.ContainsFunc(found, func(v violation) bool { return strings.Contains(v.What, tt.want) })
			if tt.want == "" && len(found) > 0 || tt.want != "" && !ok {
				t.Errorf("found %v, want %q", found, tt.want)
			}
		})
	}
}

func TestCheckTaskOfRecord(t *testing.T) {
	// The publisher is paused between its claim and its call: the call comes after the consumer's, its claim came before.
	l := &life{}
	l.next(0, "p", side{Status: retry.StatusInit, Token: "I", By: "p", Lease: at(2)})
	l.changes[0].Op = "INSERT"
	s := l.now
	s.Status, s.Token, s.Lease, s.Crashes, s.Phase = retry.StatusManualReview, "mark", time.Time{}, 1, retry.PhaseExecute
	l.next(3, "b", s).end(4, operator, retry.StatusWait).claim(5, "b", "B").end(6, "b", retry.StatusSuccess)
	calls := []call{effectOf("B", 1, 5.5, "b"), effectOf("inline:1", 0, 7, "p")}
	if found := checkTask(history{l.changes, calls}); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	l.changes = slices.Delete(l.changes, 2, 3) // without the person
	if found := checkTask(history{l.changes, calls}); !slices.ContainsFunc(found, func(v violation) bool { return strings.Contains(v.What, "neither a person's") }) {
		t.Errorf("found %v", found)
	}
}

func TestCheckJournal(t *testing.T) {
	l := newLife().claim(1, "a", "A").end(2, "a", retry.StatusManualReview).end(3, operator, retry.StatusWait).claim(4, "a", "B").end(5, "a", retry.StatusSuccess)
	facts := retry.Facts{TaskID: 7, Attempt: 1, Class: retry.ClassUnknown}
	rules := reviewScene().Rules(retry.Grid{})
	d := retry.Decide(rules, facts)
	j := explain.Journal{
		Task: retry.Task{ID: 7, Scene: "chaos.review", Status: retry.StatusSuccess, Attempt: 2}, Rules: map[int]retry.Rules{1: rules},
		Events: []persistence.Event{
			{Attempt: 1, From: retry.StatusExecuting, To: d.Status, Reason: d.Reason, Class: facts.Class, PolicyVersion: 1, Facts: &facts, Decision: &d},
			{Attempt: 1, From: retry.StatusManualReview, To: retry.StatusWait, Reason: retry.ReasonOperatorRetry},
		},
	}
	if found := checkJournal(l.changes, j); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	j.Events = j.Events[:1]
	if found := checkJournal(l.changes, j); len(found) == 0 {
		t.Error("a person's row is missing, and nothing was found")
	}
}

func TestCheckEnd(t *testing.T) {
	accepted := said{Event: eventAccepted, Scene: "chaos.review", Key: "tx:k", Task: 7}
	good := func() outcome {
		return outcome{
			told: told{said: map[string][]said{
				"p": {accepted, {Event: eventDone, Scene: "chaos.review", Key: "do:k"}},
				"a": {{Event: "finished", Task: 7, Attempt: 1, Status: "SUCCESS"}},
			}, actions: []persistence.Action{{ID: 7, Actor: operator, Note: "action 1", Verb: persistence.Retry}}},
			Tasks:    map[int64]retry.Task{7: {ID: 7, Scene: "chaos.review", Key: "tx:k", Status: retry.StatusSuccess}},
			Open:     map[int64]bool{},
			Changes:  map[int64][]change{7: newLife().claim(1, "a", "A").end(2, "a", retry.StatusSuccess).changes},
			Events:   map[int64][]persistence.Event{7: {{Actor: operator, Note: "action 1"}}},
			Calls:    map[string][]call{place("chaos.review", "tx:k"): {effectOf("A", 1, 1.5, "a")}, place("chaos.review", "do:k"): {effectOf("inline", 0, 1, "p")}},
			Business: map[string]bool{"tx:k": true},
		}
	}
	if found := checkEnd(good()); len(found) > 0 {
		t.Fatalf("found %v", found)
	}
	for want, spoil := range map[string]func(o *outcome){
		"lost: p accepted":                   func(o *outcome) { o.Tasks = nil },
		"and it is 8":                        func(o *outcome) { o.Tasks = map[int64]retry.Task{8: {ID: 8, Scene: "chaos.review", Key: "tx:k"}} },
		"and it had no effect":               func(o *outcome) { delete(o.Calls, place("chaos.review", "do:k")) },
		"SUCCESS without an effect":          func(o *outcome) { delete(o.Calls, place("chaos.review", "tx:k")) },
		"is not in the journal":              func(o *outcome) { o.Events = nil },
		"no end":                             func(o *outcome) { o.Open[7] = true },
		"and it is not so":                   func(o *outcome) { o.Changes[7] = o.Changes[7][:2] },
		"the business change":                func(o *outcome) { o.Business = nil },
		"the transaction of tx:x committed":  func(o *outcome) { o.Business["tx:x"] = true },
		"that no fault explains: wrong args": func(o *outcome) { o.said["p"] = append(o.said["p"], said{Event: eventOdd, Text: "wrong args"}) },
	} {
		o := good()
		spoil(&o)
		if found := checkEnd(o); !slices.ContainsFunc(found, func(v violation) bool { return strings.Contains(v.What, want) }) {
			t.Errorf("found %v, want %q", found, want)
		}
	}
}
