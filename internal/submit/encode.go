package submit

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/retry"
)

// maxError bounds the texts about a call in bytes. A message's headers have to fit into one
// frame, which by default holds 128 KiB.
const maxError = 4096

// Encode makes the message. What Decode would refuse is the caller's to avoid.
func Encode(m Message) amqp.Publishing {
	h := amqp.Table{HeaderScene: m.Scene}
	text := func(name, v string) {
		if v != "" {
			h[name] = v
		}
	}
	span := func(name string, d time.Duration) {
		if d > 0 {
			h[name] = millis(d)
		}
	}
	text(HeaderKey, m.Key)
	text(HeaderWorkflow, m.Workflow)
	text(HeaderBy, retry.CutString(m.By, retry.MaxKeyLen))
	span(HeaderDelay, m.Delay)
	span(HeaderDeadline, m.Deadline)
	if m.ID != 0 {
		h[HeaderID] = m.ID
	}
	if !m.Sent.IsZero() {
		h[HeaderSent] = m.Sent.UnixMilli()
	}
	if len(m.Headers) > 0 {
		table := make(amqp.Table, len(m.Headers))
		for k, v := range m.Headers {
			table[k] = v
		}
		h[HeaderHeaders] = table
	}
	if a := m.Attempt; a != nil {
		h[HeaderClass] = string(a.Class)
		text(HeaderError, retry.CutString(a.Error, maxError))
		span(HeaderElapsed, a.Elapsed)
		text(HeaderNote, retry.CutString(a.Note, maxError))
		if a.Calls > 0 {
			h[HeaderCalls] = int64(a.Calls)
		}
		span(HeaderRetryAfter, min(a.RetryAfter, retry.MaxDelay))
	}
	return amqp.Publishing{
		MessageId: m.MessageID, ContentType: m.ContentType, DeliveryMode: amqp.Persistent, Timestamp: m.Sent, Headers: h, Body: m.Args,
	}
}

// millis rounds up, so that nothing is early.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
