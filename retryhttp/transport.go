package retryhttp

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// Transport is an http.RoundTripper that tells the other service, in headers, of the attempt
// that is in a request's context. Requests outside an attempt go through as they are. Use it
// for services of your own: the headers name the task and its key.
//
// A request whose attempt or context is over is not sent. The error is retry.ErrDeadline, or the
// context's cause, marked as transient: nothing was sent.
//
// It may be used concurrently once made.
type Transport struct {
	// Base sends the requests. nil: http.DefaultTransport.
	Base http.RoundTripper
	// IdempotencyKey adds the header Idempotency-Key, service/scene/key, to requests that have
	// none. Set it only where an attempt sends a server one request: a second, different one
	// under the same key would be taken for a repetition of the first. Off by default.
	IdempotencyKey bool
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	a, ok := retry.AttemptOf(req.Context())
	if !ok {
		return base.RoundTrip(req)
	}
	own := req.Clone(req.Context()) // a RoundTripper must not change the caller's
	if own.Header == nil {
		own.Header = http.Header{}
	}
	if err := Set(own, a, t.IdempotencyKey); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	return base.RoundTrip(own)
}

// CloseIdleConnections closes those of Base. http.Client calls it.
func (t *Transport) CloseIdleConnections() {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if c, ok := base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func tooLate(ctx context.Context, a retry.Attempt, now time.Time) error {
	if ctx.Err() != nil {
		return retry.Transient(fmt.Errorf("not sent: %w", context.Cause(ctx)))
	}
	if end, ok := ctx.Deadline(); ok && !now.Before(end) {
		return retry.Transient(fmt.Errorf("not sent: %w", context.DeadlineExceeded))
	}
	if !a.Deadline.IsZero() && !now.Before(a.Deadline) {
		return retry.Transient(fmt.Errorf("not sent: %w", retry.ErrDeadline))
	}
	return nil
}
