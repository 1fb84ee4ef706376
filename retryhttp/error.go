package retryhttp

import (
	"io"
	"net/http"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// Error returns nil for a 2xx response, whose body it leaves alone, and else an error with the response's class and
// Retry-After (retry.NewHTTPError, which says what idempotent means) and the beginning of its body. It does not close the body.
//
// Errors of http.Client itself are classed by retry.ClassifyNet: give it to the scene as Classify.
func Error(resp *http.Response, idempotent bool) error {
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	// One byte more than is kept, so that a cut is marked as one. The status is the verdict, whether or not the body
	// can be read.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, retry.MaxHTTPBody+1))
	return retry.NewHTTPError(resp, string(body), time.Now(), idempotent)
}
