package retry

// Status is the state of a task. The strings are stored and stable.
type Status string

// The states of a task (design, section 4).
const (
	// StatusInit is a task recorded before its first call, under the
	// publisher's lease.
	StatusInit Status = "INIT"
	// StatusWait is a task that waits for its next attempt.
	StatusWait Status = "WAIT"
	// StatusExecuting is a task that a consumer holds by a lease.
	StatusExecuting Status = "EXECUTING"
	// StatusSuccess is the good end. It never becomes anything else.
	StatusSuccess Status = "SUCCESS"
	// StatusFailed is a stop with a reason.
	StatusFailed Status = "FAILED"
	// StatusManualReview waits for a person.
	StatusManualReview Status = "MANUAL_REVIEW"
	// StatusCancelled was ended by a person.
	StatusCancelled Status = "CANCELLED"
)

// Statuses lists every status in the order of a task's life.
func Statuses() []Status {
	return []Status{StatusInit, StatusWait, StatusExecuting, StatusSuccess, StatusFailed, StatusManualReview, StatusCancelled}
}

// Terminal reports whether the pipeline will never touch a task in this state
// again. MANUAL_REVIEW is not terminal: a person moves it on.
func (s Status) Terminal() bool {
	return s == StatusSuccess || s == StatusFailed || s == StatusCancelled
}

// Valid reports whether s is one of the states.
func (s Status) Valid() bool {
	for _, v := range Statuses() {
		if s == v {
			return true
		}
	}
	return false
}

// transitions holds every legal change of state. A person's retry of a FAILED
// task is included: FAILED is final for the pipeline, not for a person. So is that of a
// waiting task, which then waits no longer. EXECUTING stays itself when an attempt takes a
// step (see Phase).
var transitions = map[Status][]Status{
	StatusInit:         {StatusExecuting, StatusSuccess, StatusFailed, StatusWait, StatusManualReview, StatusCancelled},
	StatusWait:         {StatusExecuting, StatusWait, StatusFailed, StatusSuccess, StatusCancelled},
	StatusExecuting:    {StatusExecuting, StatusWait, StatusSuccess, StatusFailed, StatusManualReview, StatusCancelled},
	StatusManualReview: {StatusWait, StatusSuccess, StatusFailed, StatusCancelled},
	StatusFailed:       {StatusWait, StatusSuccess},
	StatusCancelled:    {StatusWait},
	StatusSuccess:      {},
}

// CanBecome reports whether the change from s to next is legal.
func (s Status) CanBecome(next Status) bool {
	for _, v := range transitions[s] {
		if v == next {
			return true
		}
	}
	return false
}
