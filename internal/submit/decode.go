package submit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/nearest"
	"github.com/spillway-mq/spillway/retry"
)

// earliest is the first time that a message can have been sent. What lies before was given in
// seconds.
var earliest = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// known are the headers that a message may have. A parked one that is sent again has its reason
// and its time still.
var known = []string{
	HeaderScene, HeaderKey, HeaderDelay, HeaderDeadline, HeaderWorkflow, HeaderHeaders, HeaderSent,
	HeaderID, HeaderBy, HeaderClass, HeaderError, HeaderElapsed, HeaderRetryAfter, HeaderCalls, HeaderNote, HeaderReason, HeaderParkedAt,
}

// Decode reads a message whose body has at most limit bytes. The error is every
// *retry.FieldError joined: each names the header or property, its value and what is allowed.
func Decode(d *amqp.Delivery, limit int) (Message, error) {
	r := reader{headers: d.Headers}
	m := Message{
		MessageID: d.MessageId, Args: d.Body, ContentType: d.ContentType,
		ID: r.number(HeaderID, 1, math.MaxInt64), Scene: r.text(HeaderScene), Key: r.text(HeaderKey),
		Headers: r.table(HeaderHeaders), Delay: r.span(HeaderDelay, retry.MaxDelay), Deadline: r.span(HeaderDeadline, 2*retry.MaxDelay), Workflow: r.text(HeaderWorkflow),
		Sent: r.time(HeaderSent), By: r.text(HeaderBy),
	}
	r.join(HeaderScene, retry.CheckScene(m.Scene))
	if r.has(HeaderKey) {
		r.join(HeaderKey, retry.CheckKey(m.Key))
	}
	if r.has(HeaderWorkflow) {
		r.join(HeaderWorkflow, CheckWorkflow(m.Workflow))
	}
	r.join(HeaderHeaders, CheckHeaders(m.Headers))
	if !storable(m.MessageID) {
		r.bad("message_id", m.MessageID, "UTF-8 without NUL")
	}
	if m.ID != 0 && m.MessageID == "" {
		r.bad("message_id", "", "set where "+HeaderID+" is")
	}
	r.body(&m, d.ContentEncoding, limit)
	r.attempt(&m)
	if m.Attempt == nil && m.Deadline != 0 && m.Deadline <= m.Delay {
		r.bad(HeaderDeadline, m.Deadline.Milliseconds(), fmt.Sprintf("above %s (%d ms)", HeaderDelay, m.Delay.Milliseconds()))
	}
	for name := range d.Headers {
		if strings.HasPrefix(name, "spillway-") && !slices.Contains(known, name) {
			r.bad("header", name, "one of "+strings.Join(known, ", ")+nearest.Hint(name, known))
		}
	}
	return m, errors.Join(r.errs...)
}

// reader reads headers and gathers what is wrong with them.
type reader struct {
	headers amqp.Table
	errs    []error
}

func (r *reader) bad(field string, value any, allowed string) {
	r.errs = append(r.errs, retry.NewFieldError(field, value, allowed))
}

// join adds err under the header's name, unless something is said of that header already.
func (r *reader) join(header string, err error) {
	said := slices.ContainsFunc(r.errs, func(e error) bool {
		var fe *retry.FieldError
		return errors.As(e, &fe) && fe.Field == header
	})
	if err != nil && !said {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", header, err))
	}
}

func (r *reader) has(header string) bool { _, ok := r.headers[header]; return ok }

func (r *reader) text(header string) string {
	v, ok := r.headers[header]
	if !ok {
		return ""
	}
	s, ok := v.(string)
	switch {
	case !ok:
		r.bad(header, fmt.Sprintf("%T", v), "a text")
	case !storable(s):
		r.bad(header, s, "UTF-8 without NUL")
	}
	return s
}

// number takes every integer of AMQP, and decimal digits from clients that send texts only.
// What is wrong is zero.
func (r *reader) number(header string, least, most int64) int64 {
	v, ok := r.headers[header]
	if !ok {
		return 0
	}
	var n int64
	switch x := v.(type) {
	case int8:
		n = int64(x)
	case uint8:
		n = int64(x)
	case int16:
		n = int64(x)
	case uint16:
		n = int64(x)
	case int32:
		n = int64(x)
	case uint32:
		n = int64(x)
	case int64:
		n = x
	case string:
		var err error
		if n, err = strconv.ParseInt(x, 10, 64); err != nil {
			ok = false
		}
	default:
		ok = false
	}
	if !ok || n < least || n > most {
		r.bad(header, v, fmt.Sprintf("a whole number from %d to %d", least, most))
		return 0
	}
	return n
}

func (r *reader) span(header string, most time.Duration) time.Duration {
	return time.Duration(r.number(header, 0, most.Milliseconds())) * time.Millisecond
}

func (r *reader) time(header string) time.Time {
	n := r.number(header, earliest.UnixMilli(), math.MaxInt64/int64(time.Millisecond))
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMilli(n)
}

func (r *reader) table(header string) map[string]string {
	v, ok := r.headers[header]
	if !ok {
		return nil
	}
	t, ok := v.(amqp.Table)
	if !ok {
		r.bad(header, fmt.Sprintf("%T", v), "a table of texts")
		return nil
	}
	out := make(map[string]string, len(t))
	for name, v := range t {
		s, ok := v.(string)
		if !ok {
			r.bad(header+"["+retry.CutString(name, 80)+"]", fmt.Sprintf("%T", v), "a text")
		}
		out[name] = s
	}
	return out
}

func (r *reader) body(m *Message, encoding string, limit int) {
	if m.ContentType == "" {
		m.ContentType = ContentJSON
	}
	if !storable(m.ContentType) {
		r.bad("content_type", m.ContentType, "UTF-8 without NUL")
	}
	switch strings.ToLower(encoding) {
	case "", "utf-8", "identity": // some clients set it always
	default:
		r.bad("content_encoding", encoding, "absent, utf-8 or identity: the body is handed to the handler as it is")
	}
	kind, _, _ := strings.Cut(m.ContentType, ";")
	switch {
	case len(m.Args) > limit:
		r.bad("body", fmt.Sprintf("%d bytes", len(m.Args)), fmt.Sprintf("at most %d bytes (max payload)", limit))
	case strings.EqualFold(strings.TrimSpace(kind), ContentJSON) && !json.Valid(m.Args):
		r.bad("body", string(m.Args), "JSON where content_type is "+ContentJSON+" or absent")
	}
}

// attempt reads what the publisher says of a call that failed.
func (r *reader) attempt(m *Message) {
	if !r.has(HeaderClass) {
		for _, name := range []string{HeaderError, HeaderElapsed, HeaderRetryAfter, HeaderCalls, HeaderNote} {
			if r.has(name) {
				r.bad(name, r.headers[name], "absent where "+HeaderClass+" is")
			}
		}
		return
	}
	m.Attempt = &Attempt{
		Class: retry.Class(r.text(HeaderClass)), Error: r.text(HeaderError), Elapsed: r.span(HeaderElapsed, 2*retry.MaxDelay), RetryAfter: r.span(HeaderRetryAfter, retry.MaxDelay),
		Calls: int(r.number(HeaderCalls, 0, math.MaxInt32)), Note: r.text(HeaderNote),
	}
	if c := m.Attempt.Class; c != retry.ClassTransient && c != retry.ClassUnknown {
		r.bad(HeaderClass, string(c), "transient or unknown: a permanent error is not tried again")
	}
	if m.Delay != 0 {
		r.bad(HeaderDelay, m.Delay.Milliseconds(), "absent where "+HeaderClass+" is: the scene's policy says when")
	}
}
