package retryhttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/retryhttp"
)

// seen is what a handler got.
type seen struct {
	attempt  retry.Attempt
	within   bool
	header   http.Header
	deadline time.Duration // of its context, from now; zero: none
}

// watch serves behind Handler and says what arrives there.
func watch(t *testing.T, trust func(*http.Request) bool) (address string, got chan seen) {
	t.Helper()
	got = make(chan seen, 10)
	return listen(t, retryhttp.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := seen{header: r.Header}
		s.attempt, s.within = retry.AttemptOf(r.Context())
		if end, ok := r.Context().Deadline(); ok {
			s.deadline = time.Until(end)
		}
		got <- s
		w.WriteHeader(http.StatusNoContent)
	}), trust)), got
}

func client(t *testing.T, idempotencyKey bool) *http.Client {
	c := &http.Client{Transport: &retryhttp.Transport{Base: http.DefaultTransport.(*http.Transport).Clone(), IdempotencyKey: idempotencyKey}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// send returns the request's class and error.
func send(ctx context.Context, t *testing.T, c *http.Client, address string, header http.Header) (retry.Class, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range header {
		req.Header[name] = v
	}
	before := len(req.Header)
	resp, err := c.Do(req)
	if len(req.Header) != before {
		t.Errorf("the caller's headers were changed: %v", req.Header)
	}
	if err == nil {
		err = retryhttp.Error(resp, false)
		_ = resp.Body.Close()
	}
	return retry.Scene{Name: "s", Classify: retry.ClassifyNet}.ClassOf(err), err
}

func TestRoundTrip(t *testing.T) {
	address, got := watch(t, nil)
	a := retry.Attempt{Number: 3, Task: 42, Service: "orders", Scene: "payment.refund", Key: " 7%ü\u2028/", Deadline: time.Now().Add(time.Hour)}
	ctx, cancel := context.WithTimeout(retry.WithAttempt(t.Context(), a), time.Minute)
	defer cancel()
	stale := http.Header{"Spillway-Task-Id": {"9"}, "Spillway-Own": {"x"}}
	if _, err := send(ctx, t, client(t, true), address, stale); err != nil {
		t.Fatal(err)
	}
	s := <-got
	if d := a.Deadline.Sub(s.attempt.Deadline).Abs(); d > 10*time.Second {
		t.Errorf("the deadline moved by %v", d)
	}
	a.Deadline, s.attempt.Deadline = time.Time{}, time.Time{}
	if !s.within || s.attempt != a {
		t.Errorf("got %+v, want %+v", s.attempt, a)
	}
	if s.deadline <= 50*time.Second || s.deadline > time.Minute {
		t.Errorf("the handler has %v, the caller waits for a minute", s.deadline)
	}
	if k := s.header.Values("Idempotency-Key"); len(k) != 1 || k[0] != "orders/payment.refund/%207%25%C3%BC%E2%80%A8/" {
		t.Errorf("Idempotency-Key %q", k)
	}
	if s.header.Get("Spillway-Own") != "x" {
		t.Error("a header of somebody else is gone")
	}

	// Least of all: a call of Do without a key.
	a = retry.Attempt{}
	if _, err := send(retry.WithAttempt(t.Context(), a), t, client(t, true), address, nil); err != nil {
		t.Fatal(err)
	}
	if s = <-got; !s.within || s.attempt != a || s.deadline != 0 || s.header.Get("Idempotency-Key") != "" {
		t.Errorf("got %+v", s)
	}
	// Not within an attempt, and no keys of its own accord.
	for _, ctx := range []context.Context{t.Context(), retry.WithoutAttempt(retry.WithAttempt(t.Context(), a))} {
		if _, err := send(ctx, t, client(t, true), address, nil); err != nil {
			t.Fatal(err)
		}
		if s = <-got; s.within || len(s.header.Values("Spillway-Attempt")) != 0 {
			t.Errorf("got %+v", s)
		}
	}
}

func TestIdempotencyKeyOfTheCaller(t *testing.T) {
	address, got := watch(t, nil)
	ctx := retry.WithAttempt(t.Context(), retry.Attempt{Service: "s", Scene: "s", Key: "k"})
	for name, tc := range map[string]struct {
		on     bool
		header http.Header
		want   string
	}{
		"off":                 {false, nil, ""},
		"off, the caller's":   {false, http.Header{"Idempotency-Key": {"mine"}}, "mine"},
		"on":                  {true, nil, "s/s/k"},
		"on, the caller's":    {true, http.Header{"Idempotency-Key": {"mine"}}, "mine"},
		"on, caller's, lower": {true, http.Header{"idempotency-key": {"mine"}}, "mine"},
	} {
		if _, err := send(ctx, t, client(t, tc.on), address, tc.header); err != nil {
			t.Fatal(err)
		}
		if k := strings.Join((<-got).header.Values("Idempotency-Key"), "|"); k != tc.want {
			t.Errorf("%s: %q, want %q", name, k, tc.want)
		}
	}
}

// Whoever sends them may be mistaken, or worse.
func TestHeadersAreHints(t *testing.T) {
	address, got := watch(t, nil)
	long := strings.Repeat("1", 1025)
	for name, tc := range map[string]struct {
		header http.Header
		want   retry.Attempt
		none   bool
	}{
		"no attempt":         {header: http.Header{"Spillway-Task-Id": {"7"}, "Spillway-Time-Left": {"0"}, "Spillway-Timeout": {"0"}}, none: true},
		"empty attempt":      {header: http.Header{"Spillway-Attempt": {""}}, none: true},
		"negative attempt":   {header: http.Header{"Spillway-Attempt": {"-1"}}, none: true},
		"signed attempt":     {header: http.Header{"Spillway-Attempt": {"+1"}}, none: true},
		"huge attempt":       {header: http.Header{"Spillway-Attempt": {"1000001"}}, none: true},
		"attempt overflows":  {header: http.Header{"Spillway-Attempt": {"99999999999999999999"}}, none: true},
		"attempt is no text": {header: http.Header{"Spillway-Attempt": {"one"}}, none: true},
		"attempt given twice": {
			header: http.Header{"Spillway-Attempt": {"1", "1"}}, none: true},
		"attempt too long": {header: http.Header{"Spillway-Attempt": {long}}, none: true},
		"largest attempt":  {header: http.Header{"Spillway-Attempt": {"1000000"}}, want: retry.Attempt{Number: 1_000_000}},
		"all else is bad": {
			header: http.Header{
				"Spillway-Attempt": {"2"}, "Spillway-Task-Id": {"0"}, "Spillway-Service": {"No Service"}, "Spillway-Scene": {"-x"}, "Spillway-Key": {"%zz"},
				"Spillway-Time-Left": {"-1"}, "Spillway-Timeout": {"1.5"},
			},
			want: retry.Attempt{Number: 2}},
		"out of range": {
			header: http.Header{
				"Spillway-Attempt": {"2"}, "Spillway-Task-Id": {"9223372036854775808"}, "Spillway-Key": {strings.Repeat("k", 256)},
				"Spillway-Time-Left": {"999999999999999"}, "Spillway-Timeout": {"999999999999999"},
			},
			want: retry.Attempt{Number: 2}},
		"one bad, one good": {
			header: http.Header{"Spillway-Attempt": {"2"}, "Spillway-Scene": {"a", "b"}, "Spillway-Key": {"%00"}, "Spillway-Task-Id": {"9223372036854775807"}},
			want:   retry.Attempt{Number: 2, Task: 1<<63 - 1}},
		"longest key": {
			header: http.Header{"Spillway-Attempt": {"0"}, "Spillway-Key": {strings.Repeat("%41", 255)}}, want: retry.Attempt{Key: strings.Repeat("A", 255)}},
	} {
		class, err := send(t.Context(), t, client(t, false), address, tc.header)
		if err != nil {
			t.Errorf("%s: %v %v", name, class, err)
			continue
		}
		if s := <-got; s.within == tc.none || s.attempt != tc.want || s.deadline != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}

	address, got = watch(t, func(r *http.Request) bool { return r.Header.Get("X-Ours") == "yes" })
	for _, ours := range []string{"no", "yes"} {
		header := http.Header{"Spillway-Attempt": {"1"}, "Spillway-Timeout": {"60000"}, "X-Ours": {ours}}
		if _, err := send(t.Context(), t, client(t, false), address, header); err != nil {
			t.Fatal(err)
		}
		if s := <-got; s.within != (ours == "yes") || (s.deadline != 0) != (ours == "yes") {
			t.Errorf("trusted %s: %+v", ours, s)
		}
	}
	// Nor can a stranger have a request refused.
	if _, err := send(t.Context(), t, client(t, false), address, http.Header{"Spillway-Attempt": {"1"}, "Spillway-Time-Left": {"0"}}); err != nil {
		t.Error(err)
	}
}

// What is too late is not begun, neither here nor there.
func TestTooLate(t *testing.T) {
	var arrived atomic.Int32
	address := listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	over, cancel := context.WithDeadlineCause(t.Context(), time.Now().Add(-time.Second), errors.New("shift is over"))
	defer cancel()
	lost, lose := context.WithCancelCause(t.Context())
	lose(retry.ErrLostClaim)
	past := retry.Attempt{Number: 1, Deadline: time.Now().Add(-time.Millisecond)}
	for name, tc := range map[string]struct {
		ctx  context.Context
		want error
	}{
		"the task's deadline": {retry.WithAttempt(t.Context(), past), retry.ErrDeadline},
		"the claim":           {retry.WithAttempt(lost, retry.Attempt{}), retry.ErrLostClaim},
	} {
		body := &closer{Reader: strings.NewReader("body")}
		req, err := http.NewRequestWithContext(tc.ctx, http.MethodPost, address, body)
		if err != nil {
			t.Fatal(err)
		}
		_, err = (&retryhttp.Transport{}).RoundTrip(req)
		if !errors.Is(err, tc.want) || retry.MarkedClass(err) != retry.ClassTransient {
			t.Errorf("%s: %v, class %s", name, err, retry.MarkedClass(err))
		}
		if !body.closed {
			t.Errorf("%s: the body was left open", name)
		}
	}
	for _, ctx := range []context.Context{retry.WithAttempt(over, retry.Attempt{}), retry.WithAttempt(t.Context(), past)} {
		// Through http.Client the class survives.
		if class, err := send(ctx, t, client(t, false), address, nil); class != retry.ClassTransient {
			t.Errorf("%v, class %s", err, class)
		}
	}
	if n := arrived.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}

	address, got := watch(t, nil)
	for _, header := range []http.Header{{"Spillway-Attempt": {"1"}, "Spillway-Time-Left": {"0"}}, {"Spillway-Attempt": {"1"}, "Spillway-Timeout": {"0"}}} {
		class, err := send(t.Context(), t, client(t, false), address, header)
		var he *retry.HTTPError
		if class != retry.ClassTransient || !errors.As(err, &he) || he.Status != http.StatusServiceUnavailable || !strings.Contains(he.Body, "not begun") {
			t.Errorf("%v: %v, class %s", header, err, class)
		}
	}
	if len(got) != 0 {
		t.Error("the handler was called")
	}
}

// The caller's patience ends the handler's context, with a reason.
func TestTimeoutTravels(t *testing.T) {
	causes := make(chan error, 1)
	address := listen(t, retryhttp.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		causes <- context.Cause(r.Context())
	}), nil))
	if _, err := send(t.Context(), t, client(t, false), address, http.Header{"Spillway-Attempt": {"1"}, "Spillway-Timeout": {"20"}}); err != nil {
		t.Fatal(err) // the handler said nothing, so 200
	}
	if err := <-causes; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waits no longer") {
		t.Errorf("%v", err)
	}
}

type closer struct {
	io.Reader
	closed bool
}

// Close implements io.Closer.
func (c *closer) Close() error { c.closed = true; return nil }
