package retry

import "errors"

// Errors that callers test with errors.Is.
var (
	// ErrEscalated says that the local tier is spent and the task is now
	// remembered: it will be tried again in the background. It is a success
	// of the hand-over, not of the call.
	ErrEscalated = errors.New("task escalated to the durable tier")
	// ErrNotRecorded says that the task could be remembered nowhere: it is
	// the caller's again.
	ErrNotRecorded = errors.New("task not recorded")
	// ErrLostClaim says that the claim named by a write is no longer valid:
	// the lease ran out and another took the task, or a person acted on it.
	// Nothing was written.
	ErrLostClaim = errors.New("claim lost")
	// ErrKeyConflict says that a task with the same scene and key, but other
	// arguments, exists.
	ErrKeyConflict = errors.New("key is held by a task with other arguments")
	// ErrNotFound says that no such task exists for this service.
	ErrNotFound = errors.New("task not found")
	// ErrState says that the task's state does not allow what was asked.
	ErrState = errors.New("not allowed in the task's state")
	// ErrInvalid says that the input is wrong; the error is a *FieldError or
	// several of them joined.
	ErrInvalid = errors.New("invalid input")
	// ErrDeadline says that a deadline was over before the work began: nothing was
	// called or sent.
	ErrDeadline = errors.New("the deadline was over before it began")
	// ErrSchema says that the database schema is older or newer than this
	// binary.
	ErrSchema = errors.New("schema version does not fit this build")
)
