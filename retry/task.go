package retry

import (
	"strconv"
	"time"
)

// Task is one thing that must come to an end, as the store holds it. Times are
// the database's.
type Task struct {
	ID      int64  `json:"id"`
	Service string `json:"service"`
	Scene   string `json:"scene"`
	// Key is the idempotency key, unique within the scene.
	Key    string `json:"key"`
	Status Status `json:"status"`
	// Attempt is the number of the last claimed attempt; 0 before the first.
	Attempt int `json:"attempt"`
	// Crashes counts the attempts that ended without a word.
	Crashes int `json:"crashes"`
	// Uncharged counts the attempts that the policy's MaxAttempts does not count.
	Uncharged int `json:"uncharged"`
	// Unknown says that the last attempt may have taken effect.
	Unknown bool `json:"unknown"`
	// Phase is what the next attempt begins with, and Tries counts the tries of
	// Query or Callback in it.
	Phase Phase `json:"phase"`
	Tries int   `json:"tries,omitempty"`

	Args        []byte            `json:"-"`
	ContentType string            `json:"content_type"`
	Headers     map[string]string `json:"headers,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	// NextAt is when the next attempt is due; in EXECUTING, when this one was.
	NextAt time.Time `json:"next_at"`
	// DispatchAfter is when a scan publishes the wake-up if the task still
	// waits then.
	DispatchAfter time.Time `json:"dispatch_after"`
	// DeadlineAt is nil where nothing but the attempts bounds the task.
	DeadlineAt *time.Time `json:"deadline_at,omitempty"`
	Workflow   string     `json:"workflow,omitempty"`

	// LeaseUntil, ClaimToken and ClaimedBy describe the current claim, or the
	// last one.
	LeaseUntil *time.Time `json:"lease_until,omitempty"`
	ClaimToken string     `json:"claim_token,omitempty"`
	ClaimedBy  string     `json:"claimed_by,omitempty"`

	FinishedAt *time.Time `json:"finished_at,omitempty"`
	StopReason Reason     `json:"stop_reason,omitempty"`
	LastError  string     `json:"last_error,omitempty"`
	LastClass  Class      `json:"last_class,omitempty"`
}

// EscalatedError says that the local tier is spent and the task is remembered.
// It is ErrEscalated to errors.Is; the last error of the call is in its chain.
type EscalatedError struct {
	// TaskID names the row. Zero: the task went to the submit queue while Postgres was
	// away, and gets its id once a consumer stores it. Where its key is held by then, it
	// is that task.
	TaskID int64
	// Status of the row: WAIT for another attempt, or MANUAL_REVIEW where nobody
	// knows whether the call took effect and a person has to look. A key that
	// was held already has the status of its task.
	Status Status
	// Cause is the last error of the local tier.
	Cause error
}

// Error implements error.
func (e *EscalatedError) Error() string {
	if e.TaskID == 0 {
		return "task escalated to the durable tier (" + string(e.Status) + ", through the submit queue) after: " + e.Cause.Error()
	}
	return "task " + strconv.FormatInt(e.TaskID, 10) + " escalated to the durable tier (" + string(e.Status) + ") after: " + e.Cause.Error()
}

// Unwrap returns ErrEscalated and the cause.
func (e *EscalatedError) Unwrap() []error { return []error{ErrEscalated, e.Cause} }
