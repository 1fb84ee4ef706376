package retry

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxHTTPBody is how many bytes of a response body an HTTPError keeps.
const MaxHTTPBody = 1024

// HTTPClass says what a final HTTP status means for a repeat of the request.
// 2xx is ClassNone. idempotent says that repeating is safe whatever the method,
// because the request carries an idempotency key that the server honours, for
// example; GET, HEAD, OPTIONS, TRACE, PUT and DELETE are idempotent by
// themselves (RFC 9110 section 9.2.2). Method names are case-sensitive; any
// other, and the empty one, counts as neither safe nor idempotent.
func HTTPClass(method string, status int, idempotent bool) Class {
	safe, repeatable := false, idempotent
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		safe, repeatable = true, true
	case http.MethodPut, http.MethodDelete:
		repeatable = true
	}

	switch status {
	case http.StatusFound, http.StatusSeeOther:
		// The usual answer to a form that was accepted: "done, look there".
		// So anything that changes state may have taken effect. For a safe
		// method it is a redirect like the others, below.
		if !safe {
			return ClassUnknown
		}
		return ClassPermanent

	case http.StatusRequestTimeout:
		// 408: the server did not receive a complete request in time, so it
		// had nothing to process (RFC 9110 section 15.5.9).
		return ClassTransient

	case http.StatusConflict:
		// 409: judged and refused in the current state. The same request meets
		// the same state again, unless the conflict is our own earlier
		// request: servers with idempotency keys answer 409 while the first
		// one still runs.
		if idempotent {
			return ClassTransient
		}
		return ClassPermanent

	case http.StatusMisdirectedRequest, // 421: refused on this connection, RFC 9110 invites a repeat on another
		http.StatusLocked,          // 423: not performed, and locks end
		http.StatusTooEarly,        // 425: refused for fear of replay, asks to come again
		http.StatusTooManyRequests: // 429: refused by a limiter before any work
		return ClassTransient

	case http.StatusServiceUnavailable:
		// 503: "unable to handle the request" for overload or maintenance, a
		// refusal, and the answer that Retry-After was made for. Some proxies
		// also use it for a backend that broke off midway; NewHTTPError looks
		// for the one that says so.
		return ClassTransient

	case http.StatusInsufficientStorage:
		// 507: "could not be performed", and "considered to be temporary"
		// (RFC 4918 section 11.5).
		return ClassTransient

	case http.StatusNetworkAuthenticationRequired:
		// 511: from a network in between; the server never saw the request.
		return ClassTransient

	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		// 501, 505: the server will not learn it between two attempts.
		return ClassPermanent
	}

	switch {
	case status >= 200 && status < 300:
		return ClassNone
	case status >= 100 && status < 200:
		// Only 101 is ever final: the other side now speaks another protocol,
		// that we did not ask for.
		return ClassPermanent
	case status >= 300 && status < 400:
		// A redirect that the client did not follow: nothing was done here,
		// and the address stays wrong. 304 answers a condition that the
		// request itself carries.
		return ClassPermanent
	case status >= 400 && status < 500:
		// The other side judged this request and refused it. 401 and 403 are
		// among these: its verdict on who we are is a verdict.
		return ClassPermanent
	}
	// 500, 502, 504 and the rest; RFC 9110 section 15 counts what is outside
	// 100 to 599 among them. The server failed somewhere in the work, or a
	// gateway lost sight of it.
	if repeatable {
		return ClassTransient
	}
	return ClassUnknown
}

// HTTPError is a final HTTP response that is not a success.
type HTTPError struct {
	// Method of the request. Empty if not known.
	Method string
	// URL of the request, without user, query and fragment, where secrets
	// tend to be. Empty if not known.
	URL string
	// Status code, such as 503.
	Status int
	// Body is the beginning of the response's body, at most MaxHTTPBody bytes
	// and a note on the cut.
	Body string
	// RetryAfter is how long the server asked to wait, at most MaxDelay.
	// Zero with HasRetryAfter set means "at once".
	RetryAfter time.Duration
	// HasRetryAfter says that the response named a wait that could be read.
	HasRetryAfter bool
}

// Error is one line and holds no more of the URL than the field does.
func (e *HTTPError) Error() string {
	var b strings.Builder
	if e.Method != "" {
		b.WriteString(e.Method + " ")
	}
	if e.URL != "" {
		b.WriteString(e.URL + ": ")
	}
	fmt.Fprintf(&b, "status %d", e.Status)
	if text := http.StatusText(e.Status); text != "" {
		b.WriteString(" " + text)
	}
	if body := strings.Join(strings.Fields(e.Body), " "); body != "" {
		b.WriteString(": " + body)
	}
	return b.String()
}

// NewHTTPError returns nil for a 2xx response and else an *HTTPError (for
// errors.As), marked with its class (see HTTPClass) and, where the response
// names one, its Retry-After. It reads nothing: body is what the caller read of
// the response's body, or empty. now stands in for a missing Date header when
// Retry-After is a date. idempotent is as for HTTPClass.
//
// Beyond HTTPClass it uses what the response shows: the request that the
// caller made, if redirects were followed, counts and not the last one.
func NewHTTPError(resp *http.Response, body string, now time.Time, idempotent bool) error {
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	e := &HTTPError{Status: resp.StatusCode, Body: CutString(body, MaxHTTPBody)}
	first := firstRequest(resp)
	if first != nil {
		e.Method = requestMethod(first)
		if first.URL != nil {
			u := *first.URL
			u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
			e.URL = u.String()
		}
	}
	// The server's own clock, where it gave one, cancels the difference
	// between its clock and ours.
	base := now
	if date, ok := parseHTTPDate(resp.Header.Get("Date")); ok {
		base = date
	}
	e.RetryAfter, e.HasRetryAfter = ParseRetryAfter(resp.Header.Get("Retry-After"), base)

	class := HTTPClass(e.Method, e.Status, idempotent)
	switch {
	case first != nil && lostMethod(resp) && !idempotent && HTTPClass(e.Method, http.StatusInternalServerError, false) == ClassUnknown:
		// A POST was answered by a redirect, so it may have been done; what
		// failed is the GET that followed. A repeat would be a POST again.
		class = ClassUnknown
	case e.Status == http.StatusRequestEntityTooLarge && e.HasRetryAfter:
		// 413 with a wait means that the condition is temporary (RFC 9110
		// section 15.5.14).
		class = ClassTransient
	case e.Status == http.StatusServiceUnavailable && brokeOffMidway(body):
		class = HTTPClass(e.Method, http.StatusBadGateway, idempotent)
	}

	var err error = e
	if e.HasRetryAfter {
		err = After(e.RetryAfter, err)
	}
	return marked(err, class)
}

// brokeOffMidway finds Envoy's 503 for a backend that was lost after the
// request had been passed on: in substance a 502. Its text ends in the reason;
// those listed here mean that the backend never had the request.
func brokeOffMidway(body string) bool {
	_, reason, ok := strings.Cut(body, "disconnect/reset before headers")
	if !ok {
		return false
	}
	for _, unsent := range []string{"connection failure", "overflow", "refused stream"} {
		if strings.Contains(reason, unsent) {
			return false
		}
	}
	return true
}

// requestMethod knows that net/http takes the empty method for GET.
func requestMethod(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// firstRequest is the request that the caller made: a request that follows a
// redirect names the response that redirected it. nil if not known.
func firstRequest(resp *http.Response) *http.Request {
	r := resp.Request
	for r != nil && r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return r
}

// lostMethod says whether a redirect on the way to resp changed the method.
func lostMethod(resp *http.Response) bool {
	for r := resp.Request; r != nil && r.Response != nil && r.Response.Request != nil; r = r.Response.Request {
		if requestMethod(r) != requestMethod(r.Response.Request) {
			return true
		}
	}
	return false
}

// ParseRetryAfter reads the value of a Retry-After header (RFC 9110 section
// 10.2.3): whole seconds, or an HTTP date in any of its three formats, which
// counts from now. Pass the response's Date as now where it has one. The result
// is 0 for a date that has passed and at most MaxDelay. It is false for
// anything else, also for a date where now is the zero time.
func ParseRetryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.Trim(value, " \t")
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		// Digits only: no sign, fraction or exponent. What does not fit an
		// int64 is too much as well.
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			n = math.MaxInt64
		}
		if n > int64(MaxDelay/time.Second) {
			return MaxDelay, true
		}
		return time.Duration(n) * time.Second, true
	}
	date, ok := parseHTTPDate(value)
	if !ok || now.IsZero() {
		return 0, false
	}
	return min(max(date.Sub(now), 0), MaxDelay), true
}

// httpDates are the formats of RFC 9110 section 5.6.7, all in UTC.
// http.ParseTime is not used because it reads the second with any zone name
// and takes that zone's offset from the machine: "EST" would mean one thing in
// New York and another elsewhere.
var httpDates = [...]string{
	http.TimeFormat,
	"Monday, 02-Jan-06 15:04:05 GMT",
	time.ANSIC,
}

func parseHTTPDate(value string) (time.Time, bool) {
	for _, layout := range httpDates {
		if t, err := time.Parse(layout, value); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
