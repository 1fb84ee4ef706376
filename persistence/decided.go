package persistence

import (
	"github.com/spillway-mq/spillway/retry"
)

// Decided is the Result of an attempt that ended as facts say and about which d was decided under
// that version of the rules. text is the error's.
func Decided(claim Claim, facts retry.Facts, d retry.Decision, version int, actor, text string) Result {
	r := Result{
		Claim: claim, Status: d.Status, Reason: d.Reason, Delay: d.Delay, Class: facts.Class, Error: text,
		Phase: d.Phase.OrExecute(), Idle: facts.Idle,
		Event: &Event{Attempt: facts.Attempt, To: d.Status, Reason: d.Reason, Class: facts.Class, Error: text, Actor: actor, PolicyVersion: version, Facts: &facts, Decision: &d},
	}
	switch r.Phase {
	case retry.PhaseQuery:
		r.Unknown = true
	case retry.PhaseExecute:
		r.Unknown = facts.Class == retry.ClassUnknown
	case retry.PhaseCallback:
	}
	if r.Phase != retry.PhaseExecute && r.Phase == facts.Phase {
		r.Tries = facts.Tries
	}
	return r
}
