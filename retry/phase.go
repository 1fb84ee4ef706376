package retry

// Phase says how far a task has got: which handler its next attempt needs (design,
// section 6). The strings are stored and stable.
type Phase string

// The phases.
const (
	// PhaseExecute: nothing is outstanding. Check, then Execute. In Facts, Decision
	// and what a store is given, the empty Phase is this one.
	PhaseExecute Phase = "execute"
	// PhaseQuery: an Execute may have taken effect. The other side is asked before
	// anything is redone.
	PhaseQuery Phase = "query"
	// PhaseCallback: it took effect. Only the Callback is left, and nothing is executed
	// again.
	PhaseCallback Phase = "callback"
)

// OrExecute is p, or PhaseExecute where p is empty.
func (p Phase) OrExecute() Phase {
	if p == "" {
		return PhaseExecute
	}
	return p
}

// Valid reports whether p is one of the phases.
func (p Phase) Valid() bool { return p == PhaseExecute || p == PhaseQuery || p == PhaseCallback }

// Progress is what Check says of our own side.
type Progress string

// What Check may say.
const (
	// NotStarted: nothing of the task was done.
	NotStarted Progress = "not_started"
	// InFlight: it was begun, and how it ended is not known here. Query is next.
	InFlight Progress = "in_flight"
	// Done: it took effect. Callback is next.
	Done Progress = "done"
)

// Answer is what Query says of the other side.
type Answer string

// What Query may say.
const (
	// TookEffect: it happened. Callback is next.
	TookEffect Answer = "took_effect"
	// NoEffect: it did not happen and will not: Execute may be called again.
	NoEffect Answer = "no_effect"
	// Pending: the other side is still at it. It is asked again later, which spends
	// none of Execute's attempts.
	Pending Answer = "pending"
	// CannotTell: a person has to find out.
	CannotTell Answer = "cannot_tell"
)
