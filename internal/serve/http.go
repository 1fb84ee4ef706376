package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/retryhttp"
)

const (
	maxDialTime = 5 * time.Second
	// idleTime is shorter than after what common servers close idle connections (2 s and more): a request sent into such
	// a close has an unknown outcome, which costs a person's time.
	idleTime = time.Second
	// maxDrain is how much of an answer is read so that its connection can be used again.
	maxDrain = 64 << 10
)

type httpRunner struct {
	url        *url.URL
	headers    map[string]string
	step       string
	idempotent bool
	client     *http.Client
}

func newHTTPRunner(s retry.Scene, h HTTP, step string, allowHosts []string) *httpRunner {
	dialTime := maxDialTime
	if s.Timeout > 0 {
		// So that a dial ends as a dial (nothing was sent) before the attempt ends as an unknown outcome.
		dialTime = min(dialTime, s.Timeout/2)
	}
	idle := 64
	if s.Concurrency > 0 {
		idle = s.Concurrency
	}
	return &httpRunner{
		url: h.URL, headers: h.Headers, step: step, idempotent: s.Unknown == retry.UnknownRepeat || step != stepExecute,
		client: &http.Client{
			// No Proxy: it would reach what the loopback rule keeps out.
			Transport: &http.Transport{
				DialContext:            dialer(dialTime, allowHosts),
				TLSHandshakeTimeout:    dialTime,
				MaxIdleConns:           idle,
				MaxIdleConnsPerHost:    idle,
				IdleConnTimeout:        idleTime,
				DisableCompression:     true,
				MaxResponseHeaderBytes: 64 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// dialer returns a dial function that connects to loopback addresses only, unless the host is allowed by name. The check
// is on the address that is really connected to, after the name was looked up.
func dialer(timeout time.Duration, allowHosts []string) func(ctx context.Context, network, address string) (net.Conn, error) {
	open := &net.Dialer{Timeout: timeout, KeepAlive: 15 * time.Second}
	strict := *open
	strict.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil || !ap.Addr().Unmap().IsLoopback() {
			return fmt.Errorf("%s is not on this machine, and allow_hosts in the scenes file does not name it", address)
		}
		return nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err == nil && slices.Contains(allowHosts, strings.ToLower(host)) {
			return open.DialContext(ctx, network, address)
		}
		return strict.DialContext(ctx, network, address)
	}
}

func (r *httpRunner) target() string { return "POST " + withoutQuery(r.url) }

func (r *httpRunner) run(ctx context.Context, c Call) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url.String(), bytes.NewReader(c.Task.Args))
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	for name, value := range c.Task.Headers {
		// What a task carries along, such as a trace id. The rest would make the request one that cannot be sent.
		if headerName.MatchString(name) && headerValue.MatchString(value) && !isOwnHeader(name) {
			req.Header.Set(name, value)
		}
	}
	for name, value := range r.headers {
		req.Header.Set(name, value)
	}
	set := func(name, value string) { req.Header[name] = []string{value} }
	if req.Header.Get("User-Agent") == "" {
		set("User-Agent", "spillway")
	}
	if ct := c.Task.ContentType; ct != "" && headerValue.MatchString(ct) {
		set("Content-Type", ct)
	}
	t := c.Task
	a := retry.Attempt{Number: c.Attempt, Task: t.ID, Service: t.Service, Scene: t.Scene, Key: t.Key}
	if r.step == stepExecute {
		a.Deadline = c.Deadline // to ask or to book is never too late
	}
	if err := retryhttp.Set(req, a, true); err != nil {
		return "", fmt.Errorf("%s: %w", r.target(), err)
	}
	set("Spillway-Handler", r.step)
	set("Spillway-Unknown", strconv.FormatBool(c.Task.Unknown))
	if d := deadlineText(c.Deadline); d != "" {
		set("Spillway-Deadline", d)
	}

	resp, err := r.client.Do(req)
	if err != nil {
		// url.Error repeats the whole address with its query.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return "", fmt.Errorf("%s: %w", r.target(), err)
	}
	defer func() {
		// The status is the verdict; that the rest of the answer cannot be read changes nothing.
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
		_ = resp.Body.Close()
	}()
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		if !answers(r.step) {
			return "", nil
		}
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return "", fmt.Errorf("%s: read the answer: %w", r.target(), err)
		}
		return word(text), nil
	}
	return "", retryhttp.Error(resp, r.idempotent)
}
