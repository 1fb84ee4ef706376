package serve

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

func httpScene(t *testing.T, address string, unknown retry.UnknownMode) Scene {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return Scene{
		Scene:   retry.Scene{Name: "payment.refund", Unknown: unknown, Classify: retry.ClassifyNet, Timeout: 10 * time.Second},
		Program: Program{HTTP: &HTTP{URL: u, Headers: map[string]string{"Authorization": "Bearer s3cret"}}},
	}
}

// post runs one call against handler and returns its error and class.
func post(t *testing.T, unknown retry.UnknownMode, handler http.HandlerFunc) (retry.Class, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	s := httpScene(t, server.URL+"/refund?token=s3cret", unknown)
	r := newHTTPRunner(s.Scene, *s.HTTP, stepExecute, nil)
	defer r.client.CloseIdleConnections()
	_, err := r.run(t.Context(), call())
	if err != nil && strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a secret in %v", err)
	}
	return s.ClassOf(err), err
}

func call() Call {
	return Call{
		Task: retry.Task{
			ID: 42, Service: "orders", Scene: "payment.refund", Key: "ord 7%ü", Args: []byte(`{"a":1}`), ContentType: "application/json", Unknown: true,
			Headers: map[string]string{"Traceparent": "00-1", "Idempotency-Key": "forged", "Spillway-Attempt": "9", "Connection": "close", "bad name": "x", "X-Line": "a\nb"},
		},
		Attempt: 3, Deadline: time.Date(2096, 7, 8, 9, 10, 11, 500e6, time.FixedZone("", 3600)), Key: "orders/payment.refund/ord 7%ü",
	}
}

func TestHTTPRequest(t *testing.T) {
	class, err := post(t, retry.UnknownReview, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		want := map[string]string{
			"Content-Type": "application/json", "Idempotency-Key": "orders/payment.refund/ord%207%25%C3%BC", "Spillway-Task-Id": "42",
			"Spillway-Scene": "payment.refund", "Spillway-Key": "ord%207%25%C3%BC", "Spillway-Attempt": "3", "Spillway-Unknown": "true",
			"Spillway-Deadline": "2096-07-08T08:10:11.5Z", "Authorization": "Bearer s3cret", "Traceparent": "00-1", "User-Agent": "spillway",
			"Connection": "", "X-Line": "",
		}
		for name, value := range want {
			if got := strings.Join(r.Header.Values(name), "|"); got != value {
				t.Errorf("%s: got %q, want %q", name, got, value)
			}
		}
		if r.Method != http.MethodPost || string(body) != `{"a":1}` || r.URL.RawQuery != "token=s3cret" {
			t.Errorf("got %s %s %s", r.Method, r.URL, body)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	if err != nil || class != retry.ClassNone {
		t.Errorf("got %v %v", class, err)
	}
}

func TestHTTPStatus(t *testing.T) {
	tests := []struct {
		status         int
		review, repeat retry.Class
	}{
		{200, retry.ClassNone, retry.ClassNone},
		{204, retry.ClassNone, retry.ClassNone},
		{301, retry.ClassPermanent, retry.ClassPermanent},
		{303, retry.ClassUnknown, retry.ClassUnknown},
		{307, retry.ClassPermanent, retry.ClassPermanent},
		{400, retry.ClassPermanent, retry.ClassPermanent},
		{409, retry.ClassPermanent, retry.ClassTransient},
		{429, retry.ClassTransient, retry.ClassTransient},
		{500, retry.ClassUnknown, retry.ClassTransient},
		{503, retry.ClassTransient, retry.ClassTransient},
	}
	for _, tt := range tests {
		for mode, want := range map[retry.UnknownMode]retry.Class{retry.UnknownReview: tt.review, retry.UnknownRepeat: tt.repeat} {
			var requests atomic.Int32
			class, err := post(t, mode, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.Header().Set("Location", "/elsewhere")
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, "why\nnot")
			})
			if class != want {
				t.Errorf("%d with %s: got %s, want %s", tt.status, mode, class, want)
			}
			if requests.Load() != 1 {
				t.Errorf("%d: %d requests, a redirect was followed", tt.status, requests.Load())
			}
			if tt.status < 300 {
				continue
			}
			if d, ok := retry.RetryAfter(err); !ok || d != 7*time.Second {
				t.Errorf("%d: Retry-After %v %v", tt.status, d, ok)
			}
			if !strings.Contains(err.Error(), "/refund: status ") || (tt.status != 204 && !strings.HasSuffix(err.Error(), "why not")) {
				t.Errorf("%d: %v", tt.status, err)
			}
		}
	}
}

func TestHTTPHugeAnswer(t *testing.T) {
	_, err := post(t, retry.UnknownReview, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
	})
	if err == nil || len(err.Error()) > 2*retry.MaxHTTPBody || !strings.Contains(err.Error(), "[cut") {
		t.Errorf("got %.200v", err)
	}
}

func TestHTTPSlow(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	s := httpScene(t, server.URL, retry.UnknownReview)
	r := newHTTPRunner(s.Scene, *s.HTTP, stepExecute, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := r.run(ctx, call())
	if s.ClassOf(err) != retry.ClassUnknown || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestHTTPNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := httpScene(t, "http://"+address+"/", retry.UnknownReview)
	if _, err := newHTTPRunner(s.Scene, *s.HTTP, stepExecute, nil).run(t.Context(), call()); s.ClassOf(err) != retry.ClassTransient {
		t.Errorf("got %v", err)
	}
}

// rawServer answers requests on each connection as serve says, and counts connections and requests.
type rawServer struct {
	address            string
	connections, reads atomic.Int32
}

func startRaw(t *testing.T, serve func(request int, c net.Conn) (goOn bool)) *rawServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{address: l.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.connections.Add(1)
			running.Go(func() {
				defer func() { _ = c.Close() }()
				buf := make([]byte, 4096)
				for {
					var request string
					for !strings.HasSuffix(request, `{"a":1}`) {
						n, err := c.Read(buf)
						if err != nil {
							return
						}
						request += string(buf[:n])
					}
					if !serve(int(s.reads.Add(1)), c) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	return s
}

// A server that took the request and then broke the connection may have acted on it. One attempt must send one request: net/http
// repeats silently on a reused connection if it thinks that it may.
func TestHTTPBrokenAfterRequestIsNotRepeated(t *testing.T) {
	for _, mode := range []retry.UnknownMode{retry.UnknownReview, retry.UnknownRepeat} {
		server := startRaw(t, func(request int, c net.Conn) bool {
			if request == 2 {
				if tc, ok := c.(*net.TCPConn); ok {
					_ = tc.SetLinger(0)
				}
				return false
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			return true
		})
		s := httpScene(t, "http://"+server.address+"/", mode)
		r := newHTTPRunner(s.Scene, *s.HTTP, stepExecute, nil)
		if _, err := r.run(t.Context(), call()); err != nil {
			t.Fatal(err)
		}
		_, err := r.run(t.Context(), call())
		if s.ClassOf(err) != retry.ClassUnknown {
			t.Errorf("%s: got %v of class %s", mode, err, s.ClassOf(err))
		}
		if server.reads.Load() != 2 || server.connections.Load() != 1 {
			t.Errorf("%s: %d requests on %d connections, want 2 on 1", mode, server.reads.Load(), server.connections.Load())
		}
		r.client.CloseIdleConnections()
	}
}

func TestHTTPDialsOnlyThisMachine(t *testing.T) {
	strict := dialer(time.Second, []string{"allowed.example", "192.0.2.9"})
	for _, address := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "0.0.0.0:80", "[::ffff:192.0.2.1]:80"} {
		_, err := strict(t.Context(), "tcp", address)
		if err == nil || !strings.Contains(err.Error(), "not on this machine") {
			t.Errorf("%s: got %v", address, err)
		}
		if c := retry.ClassifyNet(err); c != retry.ClassTransient {
			t.Errorf("%s: class %s", address, c)
		}
	}
	// An allowed host gets as far as connecting, which the context prevents here.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := strict(ctx, "tcp", "192.0.2.9:80"); err == nil || strings.Contains(err.Error(), "not on this machine") {
		t.Errorf("got %v", err)
	}
	// Loopback in all its forms is reached.
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, host := range []string{"localhost", "127.0.0.1", "::ffff:127.0.0.1"} {
		c, err := strict(t.Context(), "tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		_ = c.Close()
	}
}
