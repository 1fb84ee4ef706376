package retry_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// A scene's classifier: what is special first, then what is general.
func ExampleFirstOf() {
	errSoldOut := errors.New("sold out")
	classify := retry.FirstOf(
		func(err error) retry.Class {
			if errors.Is(err, errSoldOut) {
				return retry.ClassPermanent
			}
			return retry.ClassNone
		},
		retry.ClassifySQLState,
		retry.ClassifyNet,
	)
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	reset := &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	fmt.Println(classify(errSoldOut))
	fmt.Println(classify(fmt.Errorf("book: %w", refused)))
	fmt.Println(classify(fmt.Errorf("book: %w", reset)))
	// Output:
	// permanent
	// transient
	// unknown
}

// A handler turns a response that is not a success into an error that says
// what to do next.
func ExampleNewHTTPError() {
	req, _ := http.NewRequest(http.MethodPost, "https://pay.test/refunds?token=secret", nil)
	resp := &http.Response{
		StatusCode: http.StatusTooManyRequests,
		Header:     http.Header{"Retry-After": {"30"}},
		Request:    req,
	}
	err := retry.NewHTTPError(resp, "slow down", time.Now(), false)
	wait, _ := retry.RetryAfter(err)
	fmt.Println(err)
	fmt.Println(retry.MarkedClass(err), wait)
	// Output:
	// POST https://pay.test/refunds: status 429 Too Many Requests: slow down
	// transient 30s
}

func ExampleClassifyGRPC() {
	// With gRPC imported, this is
	//	s, ok := status.FromError(err)
	//	return uint32(s.Code()), ok
	code := func(error) (uint32, bool) { return 14, true } // UNAVAILABLE
	err := errors.New("unavailable")
	fmt.Println(retry.ClassifyGRPC(code, false)(err))
	fmt.Println(retry.ClassifyGRPC(code, true)(err))
	// Output:
	// unknown
	// transient
}
