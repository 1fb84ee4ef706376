package retryhttp

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// Names of the headers, see the package's comment.
const (
	HeaderAttempt  = "Spillway-Attempt"
	HeaderTask     = "Spillway-Task-Id"
	HeaderService  = "Spillway-Service"
	HeaderScene    = "Spillway-Scene"
	HeaderKey      = "Spillway-Key"
	HeaderTimeLeft = "Spillway-Time-Left"
	HeaderTimeout  = "Spillway-Timeout"
)

// headerIdempotencyKey is written in lower case on purpose; header names know no case. Under its usual name net/http
// takes it for leave to repeat a request that was sent on a connection which then broke, without telling anybody.
// Whether that is safe is for the scene to say, and the repeat has to be an attempt of its own. Requests of which
// nothing was written yet are still moved to a fresh connection.
const headerIdempotencyKey = "idempotency-key"

const (
	// maxAttempt is the largest number that is believed. No policy allows more attempts.
	maxAttempt = 1_000_000
	// maxValue bounds a header's value in bytes: a key of retry.MaxKeyLen bytes, each of them encoded, fits.
	maxValue = 1024
)

// names are those of all headers that Transport sets and Handler reads.
var names = [...]string{HeaderAttempt, HeaderTask, HeaderService, HeaderScene, HeaderKey, HeaderTimeLeft, HeaderTimeout}

// Set sets the headers of a request that is part of a, and removes those of another
// attempt. idempotencyKey adds Idempotency-Key, unless the request has one. The request's
// context gives Spillway-Timeout.
//
// The error is retry.ErrDeadline or the context's cause, marked as transient, where the
// time for the request is over: then nothing was set and it should not be sent.
func Set(req *http.Request, a retry.Attempt, idempotencyKey bool) error {
	ctx, now := req.Context(), time.Now()
	if err := tooLate(ctx, a, now); err != nil {
		return err
	}
	for _, name := range names {
		req.Header.Del(name)
	}
	set := func(name, value string) {
		if value != "" {
			req.Header[name] = []string{value}
		}
	}
	set(HeaderAttempt, strconv.Itoa(a.Number))
	if a.Task != 0 {
		set(HeaderTask, strconv.FormatInt(a.Task, 10))
	}
	set(HeaderService, printable(a.Service))
	set(HeaderScene, printable(a.Scene))
	set(HeaderKey, printable(a.Key))
	if !a.Deadline.IsZero() {
		set(HeaderTimeLeft, millis(a.Deadline.Sub(now)))
	}
	if end, ok := ctx.Deadline(); ok {
		set(HeaderTimeout, millis(end.Sub(now)))
	}
	if idempotencyKey && !given(req.Header, headerIdempotencyKey) {
		set(headerIdempotencyKey, printable(a.IdempotencyKey()))
	}
	return nil
}

// given looks for a header in any case: a map may hold what Get does not see.
func given(h http.Header, name string) bool {
	for n, v := range h {
		if strings.EqualFold(n, name) && len(v) > 0 {
			return true
		}
	}
	return false
}

// millis is rounded up, so that what is left of the last millisecond does not read as nothing.
func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

// hint is what a request says of itself.
type hint struct {
	attempt retry.Attempt
	late    bool
	timeout time.Duration // zero: none
}

// read reads a request's headers. Whoever sent them may be mistaken, or worse: a value that is missing, given twice,
// longer than maxValue or out of its range counts as not given, and the others still count. The exception is
// HeaderAttempt, without which nothing does: ok is false.
func read(h http.Header, now time.Time) (got hint, ok bool) {
	number, ok := whole(h, HeaderAttempt, 0, maxAttempt)
	if !ok {
		return got, false
	}
	got.attempt.Number = int(number)
	got.attempt.Task, _ = whole(h, HeaderTask, 1, 1<<63-1)
	got.attempt.Service = name(h, HeaderService, retry.CheckService)
	got.attempt.Scene = name(h, HeaderScene, retry.CheckScene)
	got.attempt.Key = name(h, HeaderKey, retry.CheckKey)
	if ms, ok := whole(h, HeaderTimeLeft, 0, retry.MaxDelay.Milliseconds()); ok {
		got.late = ms == 0
		got.attempt.Deadline = now.Add(time.Duration(ms) * time.Millisecond)
	}
	if ms, ok := whole(h, HeaderTimeout, 0, retry.MaxDelay.Milliseconds()); ok {
		got.late = got.late || ms == 0
		got.timeout = time.Duration(ms) * time.Millisecond
	}
	return got, true
}

// value of a header that is given once and not too long.
func value(h http.Header, name string) (string, bool) {
	v := h.Values(name)
	if len(v) != 1 || len(v[0]) > maxValue {
		return "", false
	}
	return v[0], true
}

// whole reads decimal digits; zero where it is false.
func whole(h http.Header, name string, least, most int64) (int64, bool) {
	v, ok := value(h, name)
	if !ok || v == "" || strings.Trim(v, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < least || n > most {
		return 0, false
	}
	return n, true
}

func name(h http.Header, header string, check func(string) error) string {
	v, ok := value(h, header)
	if !ok {
		return ""
	}
	v, err := url.PathUnescape(v)
	if err != nil || check(v) != nil {
		return ""
	}
	return v
}

// printable percent-encodes what is not printable ASCII, spaces (HTTP trims them at the ends, so that two keys could
// become one) and %.
func printable(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
