package retryhttp

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// Handler puts the attempt that a request is part of into its context (retry.AttemptOf), before
// next sees it. publisher.Do then calls once and remembers nothing, and a Transport tells the next
// service. Spillway-Timeout becomes the context's deadline.
//
// A request whose time is over is answered with 503 and next is not called. It is not 504, which
// says that nobody knows what was done; here nothing was, and clients class 503 as that.
//
// The headers are hints. Whoever can send them can make this service forget what fails: that is
// right for a caller who tries again, and not for the public. trust says whose are believed;
// nil: everybody's, for servers that only services of your own reach. All others are served as if
// they had sent none.
//
// A value that is missing, given twice, longer than 1024 bytes or out of its range counts as not
// given. Without a good Spillway-Attempt (0 to 1000000) none is read.
func Handler(next http.Handler, trust func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, ok := read(r.Header, time.Now())
		if !ok || trust != nil && !trust(r) {
			next.ServeHTTP(w, r)
			return
		}
		if got.late {
			http.Error(w, "not begun: "+retry.ErrDeadline.Error(), http.StatusServiceUnavailable)
			return
		}
		ctx := retry.WithAttempt(r.Context(), got.attempt)
		if got.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, got.timeout, fmt.Errorf("the caller waits no longer (%s): %w", HeaderTimeout, context.DeadlineExceeded))
			defer cancel()
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
