// Package submit is about whole tasks as messages: what a service's submit queue holds.
// Publishers send them while Postgres is away, and any AMQP client may.
//
// Encode and Decode are the format, which is documented in docs/operations.md and stable.
// A Sender publishes such messages, and those that are parked, confirmed one by one.
package submit

import (
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// The headers of a message. Times are whole milliseconds.
const (
	HeaderScene    = "spillway-scene"    // required
	HeaderKey      = "spillway-key"      // idempotency key within the scene
	HeaderDelay    = "spillway-delay"    // until the first attempt
	HeaderDeadline = "spillway-deadline" // after which no attempt begins
	HeaderWorkflow = "spillway-workflow" // whose deadline the task shares
	HeaderHeaders  = "spillway-headers"  // a table of texts for the handler
	HeaderSent     = "spillway-sent"     // when, since 1970

	// What publishers add.
	HeaderID         = "spillway-id"          // the row's, where one was taken before Postgres was away
	HeaderBy         = "spillway-by"          // who, for the journal
	HeaderClass      = "spillway-class"       // of the error of a call that was made already
	HeaderError      = "spillway-error"       // its text
	HeaderElapsed    = "spillway-elapsed"     // from the call's start to its failure
	HeaderRetryAfter = "spillway-retry-after" // the wait that the other side asked for
	HeaderCalls      = "spillway-calls"       // how many calls were made
	HeaderNote       = "spillway-note"        // what became of them, for people

	// What a parked message has besides.
	HeaderReason   = "spillway-reason"    // why it was parked
	HeaderParkedAt = "spillway-parked-at" // when, since 1970
)

// ContentJSON is the content type of a message that names none.
const ContentJSON = "application/json"

// Message is a task on its way.
type Message struct {
	// MessageID recognises the message when it comes again. Empty: nothing does, but
	// for the key.
	MessageID string
	// ID of the row, if an insert with it was tried or may have been. Zero: none.
	ID          int64
	Scene       string
	Key         string // empty: none
	Args        []byte
	ContentType string
	Headers     map[string]string
	// Delay until the first attempt, counted from Sent. Zero where Attempt is set.
	Delay time.Duration
	// Deadline counted from Sent, or from the start of Attempt. Zero: the scene's.
	Deadline time.Duration
	Workflow string
	// Sent is when the message was made, by the sender's clock. Zero: not known, and the
	// time in the queue does not count.
	Sent time.Time
	// By is the sender's name. Empty: not known.
	By string
	// Attempt is the call that was made already; nil for a task that was not tried.
	Attempt *Attempt
}

// Attempt is attempt 0: the call inside the publisher, which failed.
type Attempt struct {
	Class retry.Class // transient or unknown
	Error string
	// Elapsed from the call's start until Sent.
	Elapsed    time.Duration
	RetryAfter time.Duration // counted from Sent; zero: none
	Calls      int           // of the local tier; zero: not told
	Note       string        // for the journal
}

// Passed is the time from Sent until now, and never below zero: clocks differ.
func (m *Message) Passed(now time.Time) time.Duration {
	if m.Sent.IsZero() {
		return 0
	}
	return max(now.Sub(m.Sent), 0)
}
