package retryhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/retryhttp"
)

// A handler of a consumer, or the call of a Do, asks another service over HTTP. That one knows that
// somebody above tries again.
func Example() {
	stock := httptest.NewServer(retryhttp.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, within := retry.AttemptOf(r.Context()) // publisher.Do looks for it too, and then calls once
		fmt.Println("stock:", within, "attempt", a.Number, "of", a.Scene, a.Key)
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}), nil))
	defer stock.Close()

	client := &http.Client{Transport: &retryhttp.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	reserve := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, stock.URL, nil)
		if err != nil {
			return retry.Permanent(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return err // the scene's Classify is retry.ClassifyNet
		}
		defer func() { _ = resp.Body.Close() }()
		return retryhttp.Error(resp, false)
	}

	// Consumer and publisher make such a context.
	ctx := retry.WithAttempt(context.Background(), retry.Attempt{Number: 2, Service: "orders", Scene: "stock.reserve", Key: "o-1"})
	err := reserve(ctx)
	wait, _ := retry.RetryAfter(err)
	fmt.Println("orders:", retry.MarkedClass(err), wait)
	// Output:
	// stock: true attempt 2 of stock.reserve o-1
	// orders: transient 7s
}
