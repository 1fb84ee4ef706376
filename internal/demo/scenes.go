package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// Service is the demo's service; Schema holds its tables.
const (
	Service = "demo"
	Schema  = "spillway_demo"
)

// charge is the argument of both scenes.
type charge struct {
	Order string `json:"order"`
	Cents int    `json:"cents"`
}

// scenes: a charge may be repeated, since the downstream recognises the key. A
// reservation may not, so an outcome that nobody knows goes to a person.
func scenes() []retry.Scene {
	policy := retry.Policy{Kind: retry.Exponential, Base: 500 * time.Millisecond, Cap: 4 * time.Second, MaxAttempts: 5, Deadline: time.Minute}
	local := retry.Local{Retries: 2, Pause: 50 * time.Millisecond}
	return []retry.Scene{
		{Name: "payment.charge", Policy: policy, Local: local, Unknown: retry.UnknownRepeat, Classify: retry.ClassifyNet, Timeout: 5 * time.Second},
		{Name: "stock.reserve", Policy: policy, Local: local, Classify: retry.ClassifyNet, Timeout: 5 * time.Second},
	}
}

// caller calls the downstream.
type caller struct {
	url    string
	client *http.Client
}

func newCaller(url string) *caller {
	return &caller{url: url, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128, DisableKeepAlives: false}}}
}

// call makes one call. run names the claim, so that the ledger can tell a
// repetition under a new claim from one under the same.
func (c *caller) call(ctx context.Context, scene retry.Scene, key, run string, attempt int, args charge) error {
	body, err := json.Marshal(args)
	if err != nil {
		return retry.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/"+scene.Name, bytes.NewReader(body))
	if err != nil {
		return retry.Permanent(err)
	}
	// Not Idempotency-Key: net/http itself repeats requests that carry it.
	req.Header.Set("Demo-Key", key)
	req.Header.Set("Demo-Run", run)
	req.Header.Set("Demo-Attempt", strconv.Itoa(attempt))
	resp, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("call downstream: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, retry.MaxHTTPBody))
	if err != nil {
		return fmt.Errorf("read downstream's answer: %w", err)
	}
	return retry.NewHTTPError(resp, string(text), time.Now(), scene.Unknown == retry.UnknownRepeat)
}
