package retry_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// wantNet fails the test unless err is an error of the class. It logs the
// error, since which error a platform gives is half of the test.
func wantNet(t *testing.T, err error, want retry.Class) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	t.Logf("%T: %v", err, err)
	if got := retry.ClassifyNet(err); got != want {
		t.Errorf("ClassifyNet(%v) = %q, want %q", err, got, want)
	}
	if got := retry.ClassifyNet(fmt.Errorf("refund: %w", err)); got != want {
		t.Errorf("wrapped: %q, want %q", got, want)
	}
}

// serve accepts connections on loopback until the test ends, runs handle on
// each in a goroutine of its own and closes it after. It returns the address
// and the listener, for tests that close it early.
func serve(t *testing.T, handle func(*net.TCPConn)) (string, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed by the cleanup below or by the test
			}
			wg.Go(func() {
				defer c.Close()
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String(), l
}

// refused is an address that nothing listens on.
func refused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// client is an HTTP client of its own, without proxies, that leaves nothing
// behind.
func client(t *testing.T, tr *http.Transport) *http.Client {
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// post sends a POST and returns its error, or that of reading the answer.
func post(ctx context.Context, c *http.Client, url string, header ...string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("amount=1"))
	if err != nil {
		return err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// readRequest reads one whole request, as a server that acts on it would.
func readRequest(c net.Conn) bool {
	return readRequestFrom(bufio.NewReader(c))
}

func readRequestFrom(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// untilClosed waits for the other side to go away.
func untilClosed(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func TestClassifyNetBeforeSending(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		addr := refused(t)
		_, err := net.Dial("tcp", addr)
		wantNet(t, err, retry.ClassTransient)
		wantNet(t, post(t.Context(), client(t, &http.Transport{}), "http://"+addr), retry.ClassTransient)
		// As from a driver that kept only the cause.
		wantNet(t, syscall.ECONNREFUSED, retry.ClassTransient)
	})
	t.Run("proxy refused", func(t *testing.T) {
		proxy := &url.URL{Scheme: "http", Host: refused(t)}
		tr := &http.Transport{Proxy: http.ProxyURL(proxy)}
		wantNet(t, post(t.Context(), client(t, tr), "http://192.0.2.1/"), retry.ClassTransient)
		socks := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "socks5", Host: refused(t)})}
		wantNet(t, post(t.Context(), client(t, socks), "http://192.0.2.1/"), retry.ClassTransient)
	})
	t.Run("canceled and late in the dial", func(t *testing.T) {
		addr, _ := serve(t, func(c *net.TCPConn) { untilClosed(c) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		wantNet(t, err, retry.ClassTransient)
		_, err = (&net.Dialer{Deadline: time.Unix(1, 0)}).Dial("tcp", addr)
		wantNet(t, err, retry.ClassTransient)
		// Within net/http as well, if the dialer has the shorter limit.
		tr := &http.Transport{DialContext: (&net.Dialer{Timeout: 1}).DialContext}
		wantNet(t, post(t.Context(), client(t, tr), "http://"+addr), retry.ClassTransient)
	})
	t.Run("no name server", func(t *testing.T) {
		r := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "udp", Err: syscall.ENETUNREACH}
		}}
		_, err := r.LookupHost(t.Context(), "refunds.example")
		wantNet(t, err, retry.ClassTransient)
		_, err = (&net.Dialer{Resolver: r}).DialContext(t.Context(), "tcp", "refunds.example:80")
		wantNet(t, err, retry.ClassTransient)
	})
	t.Run("no such host", func(t *testing.T) {
		wantNet(t, &net.DNSError{Err: "no such host", Name: "refunds.example", IsNotFound: true}, retry.ClassTransient)
		wantNet(t, &net.DNSError{Err: "i/o timeout", Name: "refunds.example", IsTimeout: true}, retry.ClassTransient)
	})
	t.Run("bad address", func(t *testing.T) {
		_, err := net.Dial("tcp", "no-port")
		wantNet(t, err, retry.ClassTransient)
		//lint:ignore SA1007 wrong on purpose
		_, err = url.Parse("http://bad host/%zz")
		wantNet(t, err, retry.ClassPermanent)
		wantNet(t, post(t.Context(), client(t, &http.Transport{}), "http://127.0.0.1:port/"), retry.ClassPermanent)
	})
}

func TestClassifyNetTLS(t *testing.T) {
	quiet := log.New(io.Discard, "", 0)
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	start := func(t *testing.T, server *tls.Config) *httptest.Server {
		s := httptest.NewUnstartedServer(ok)
		s.TLS, s.Config.ErrorLog = server, quiet
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	trusting := func(s *httptest.Server) *tls.Config {
		pool := x509.NewCertPool()
		pool.AddCert(s.Certificate())
		return &tls.Config{RootCAs: pool}
	}

	t.Run("unknown authority", func(t *testing.T) {
		s := start(t, nil)
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}}
		wantNet(t, post(t.Context(), client(t, tr), s.URL), retry.ClassTransient)
		// As from a driver that verifies by itself.
		_, err := s.Certificate().Verify(x509.VerifyOptions{Roots: x509.NewCertPool()})
		wantNet(t, err, retry.ClassTransient)
	})
	t.Run("wrong host", func(t *testing.T) {
		s := start(t, nil)
		config := trusting(s)
		config.ServerName = "other.test"
		wantNet(t, post(t.Context(), client(t, &http.Transport{TLSClientConfig: config}), s.URL), retry.ClassTransient)
		wantNet(t, s.Certificate().VerifyHostname("other.test"), retry.ClassTransient)
	})
	t.Run("expired", func(t *testing.T) {
		s := start(t, nil)
		config := trusting(s)
		config.Time = func() time.Time { return s.Certificate().NotAfter.Add(time.Hour) }
		wantNet(t, post(t.Context(), client(t, &http.Transport{TLSClientConfig: config}), s.URL), retry.ClassTransient)
	})
	t.Run("no common version", func(t *testing.T) {
		s := start(t, &tls.Config{MinVersion: tls.VersionTLS13})
		config := trusting(s)
		config.MaxVersion = tls.VersionTLS12
		wantNet(t, post(t.Context(), client(t, &http.Transport{TLSClientConfig: config}), s.URL), retry.ClassTransient)
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run("client certificate wanted, "+tls.VersionName(version), func(t *testing.T) {
			s := start(t, &tls.Config{ClientAuth: tls.RequireAnyClientCert})
			config := trusting(s)
			config.ServerName, config.MaxVersion = "example.com", version
			// A bare connection that writes nothing: net/http would race its
			// request against the alert.
			c, err := tls.Dial("tcp", s.Listener.Addr().String(), config)
			if err == nil { // TLS 1.3 tells at the first read
				defer c.Close()
				_, err = c.Read(make([]byte, 1))
			}
			wantNet(t, err, retry.ClassTransient)
		})
	}
	t.Run("server without TLS", func(t *testing.T) {
		s := httptest.NewUnstartedServer(ok)
		s.Config.ErrorLog = quiet
		s.Start()
		t.Cleanup(s.Close)
		addr := s.Listener.Addr().String()
		err := post(t.Context(), client(t, &http.Transport{}), "https://"+addr)
		if !errors.Is(err, http.ErrSchemeMismatch) {
			t.Errorf("not what this test is about: %v", err)
		}
		wantNet(t, err, retry.ClassTransient)
		_, err = tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
		wantNet(t, err, retry.ClassTransient)
	})
	t.Run("handshake timeout", func(t *testing.T) {
		addr, _ := serve(t, func(c *net.TCPConn) { untilClosed(c) })
		tr := &http.Transport{TLSHandshakeTimeout: 20 * time.Millisecond}
		wantNet(t, post(t.Context(), client(t, tr), "https://"+addr), retry.ClassTransient)
	})
	t.Run("closed in the handshake", func(t *testing.T) {
		// Nothing of the request was sent, but the error does not show it.
		addr, _ := serve(t, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 4096)) })
		wantNet(t, post(t.Context(), client(t, &http.Transport{}), "https://"+addr), retry.ClassUnknown)
	})
	t.Run("alerts and garbage after the handshake", func(t *testing.T) {
		wantNet(t, &net.OpError{Op: "remote error", Err: tls.AlertError(80)}, retry.ClassUnknown) // internal error
		wantNet(t, &net.OpError{Op: "local error", Err: tls.AlertError(20)}, retry.ClassUnknown)  // bad record MAC
		wantNet(t, &net.OpError{Op: "remote error"}, retry.ClassUnknown)
		wantNet(t, tls.RecordHeaderError{Msg: "garbage"}, retry.ClassUnknown)
	})
}

func TestClassifyNetAfterSending(t *testing.T) {
	t.Run("closed before reading", func(t *testing.T) {
		addr, _ := serve(t, func(*net.TCPConn) {})
		wantNet(t, post(t.Context(), client(t, &http.Transport{}), "http://"+addr), retry.ClassUnknown)
	})
	t.Run("closed after reading", func(t *testing.T) {
		addr, _ := serve(t, func(c *net.TCPConn) { readRequest(c) })
		wantNet(t, post(t.Context(), client(t, &http.Transport{}), "http://"+addr), retry.ClassUnknown)
	})
	t.Run("reset after reading", func(t *testing.T) {
		addr, _ := serve(t, func(c *net.TCPConn) {
			readRequest(c)
			_ = c.SetLinger(0)
		})
		err := post(t.Context(), client(t, &http.Transport{}), "http://"+addr)
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("not what this test is about: %v", err)
		}
		wantNet(t, err, retry.ClassUnknown)
	})
	t.Run("cut answer", func(t *testing.T) {
		addr, _ := serve(t, func(c *net.TCPConn) {
			readRequest(c)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")
		})
		err := post(t.Context(), client(t, &http.Transport{}), "http://"+addr)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("not what this test is about: %v", err)
		}
		wantNet(t, err, retry.ClassUnknown)
	})
	t.Run("answer that is not HTTP", func(t *testing.T) {
		addr, _ := serve(t, func(c *net.TCPConn) {
			readRequest(c)
			_, _ = io.WriteString(c, "what?\r\n\r\n")
		})
		wantNet(t, post(t.Context(), client(t, &http.Transport{}), "http://"+addr), retry.ClassUnknown)
	})
	t.Run("silent server", func(t *testing.T) {
		got := make(chan struct{}, 8)
		addr, _ := serve(t, func(c *net.TCPConn) {
			if readRequest(c) {
				got <- struct{}{}
			}
			untilClosed(c)
		})
		errTooSlow := errors.New("too slow")
		for name, call := range map[string]func() error{
			"canceled": func() error {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					<-got
					cancel()
				}()
				return post(ctx, client(t, &http.Transport{}), "http://"+addr)
			},
			"deadline": func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				return post(ctx, client(t, &http.Transport{}), "http://"+addr)
			},
			"client timeout": func() error {
				c := client(t, &http.Transport{})
				c.Timeout = 50 * time.Millisecond
				return post(t.Context(), c, "http://"+addr)
			},
			"header timeout": func() error {
				tr := &http.Transport{ResponseHeaderTimeout: 50 * time.Millisecond}
				return post(t.Context(), client(t, tr), "http://"+addr)
			},
			"read deadline": func() error {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					return err
				}
				defer c.Close()
				_ = c.SetReadDeadline(time.Unix(1, 0))
				_, err = c.Read(make([]byte, 1))
				return fmt.Errorf("%w: %w", errTooSlow, err)
			},
		} {
			t.Run(name, func(t *testing.T) { wantNet(t, call(), retry.ClassUnknown) })
		}
	})
	t.Run("context ends while net/http dials", func(t *testing.T) {
		// Nothing was sent, but net/http gives the bare context error.
		ctx, cancel := context.WithCancel(t.Context())
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			cancel()
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
		}}
		err := post(ctx, client(t, tr), "http://192.0.2.1/")
		if err == nil {
			t.Fatal("no error")
		}
		// Which of the two errors wins is net/http's race; transient is right
		// and unknown is careful.
		if got := retry.ClassifyNet(err); got != retry.ClassUnknown && got != retry.ClassTransient {
			t.Errorf("ClassifyNet(%v) = %q", err, got)
		}
	})
	t.Run("broken pipe", func(t *testing.T) {
		addr, _ := serve(t, func(c *net.TCPConn) {
			// Not before the client's first byte: a reset that comes sooner
			// can still fail its dial.
			_, _ = c.Read(make([]byte, 1))
			_ = c.SetLinger(0)
		})
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte("a"))
		_, _ = c.Read(make([]byte, 1)) // returns once the reset is here
		for err == nil {               // the first write may still be taken
			_, err = c.Write([]byte("amount=1"))
		}
		wantNet(t, err, retry.ClassUnknown)
		wantNet(t, syscall.EPIPE, retry.ClassUnknown)
	})
	t.Run("closed by ourselves", func(t *testing.T) {
		addr, _ := serve(t, func(c *net.TCPConn) { untilClosed(c) })
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		_, err = c.Write([]byte("amount=1"))
		wantNet(t, err, retry.ClassUnknown)
		wantNet(t, net.ErrClosed, retry.ClassUnknown)
	})
}

// A request with an idempotency key is repeated by net/http itself, and the
// dial that then fails hides that the first one was read. The answer must be
// one that allows for that: transient is, since such a request may be repeated.
func TestClassifyNetReplayedRequest(t *testing.T) {
	var l net.Listener
	ready, read := make(chan struct{}), make(chan struct{}, 1)
	addr, l := serve(t, func(c *net.TCPConn) {
		<-ready
		r := bufio.NewReader(c)
		readRequestFrom(r)
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		if readRequestFrom(r) {
			l.Close() // no second connection
			read <- struct{}{}
		}
	})
	close(ready) // l is set
	c := client(t, &http.Transport{})
	if err := post(t.Context(), c, "http://"+addr); err != nil {
		t.Fatal(err)
	}
	err := post(t.Context(), c, "http://"+addr, "Idempotency-Key", "flight-1")
	<-read
	wantNet(t, err, retry.ClassTransient)
}

// Errors that cannot be provoked at will; the texts are net/http's.
func TestClassifyNetByHand(t *testing.T) {
	inPost := func(text string) error { return &url.Error{Op: "Post", URL: "http://a/", Err: errors.New(text)} }
	for _, tc := range []struct {
		err  error
		want retry.Class
	}{
		{context.Canceled, retry.ClassUnknown},
		{context.DeadlineExceeded, retry.ClassUnknown},
		{&net.OpError{Op: "dial", Err: context.DeadlineExceeded}, retry.ClassTransient},
		{&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, retry.ClassTransient},
		{&net.OpError{Op: "read", Err: syscall.EHOSTUNREACH}, retry.ClassUnknown},
		// On a UDP socket: the answer to an earlier write.
		{&net.OpError{Op: "read", Err: syscall.ECONNREFUSED}, retry.ClassUnknown},
		{&net.OpError{Op: "set", Err: net.ErrClosed}, retry.ClassUnknown},
		{&net.OpError{Op: "listen", Err: errors.New("no")}, retry.ClassNone},
		{syscall.EHOSTUNREACH, retry.ClassUnknown},
		{syscall.ETIMEDOUT, retry.ClassUnknown},
		{syscall.EADDRNOTAVAIL, retry.ClassTransient},
		{syscall.ENOENT, retry.ClassNone},
		{io.EOF, retry.ClassUnknown},
		{io.ErrUnexpectedEOF, retry.ClassUnknown},
		{io.ErrClosedPipe, retry.ClassUnknown},
		{inPost("http: server closed idle connection"), retry.ClassUnknown},
		{inPost("http2: Transport received Server's graceful shutdown GOAWAY"), retry.ClassTransient},
		{inPost("http2: Transport: cannot retry err [http2: Transport received Server's graceful shutdown GOAWAY] after Request.Body was written; define Request.GetBody to avoid this error"), retry.ClassTransient},
		{inPost("http2: Transport: cannot retry err [stream error: stream ID 3; REFUSED_STREAM; received from peer] after Request.Body was written; define Request.GetBody to avoid this error"), retry.ClassTransient},
		{inPost("http2: Transport: cannot retry err [stream error: stream ID 3; PROTOCOL_ERROR; received from peer] after Request.Body was written; define Request.GetBody to avoid this error"), retry.ClassUnknown},
		{inPost("stream error: stream ID 3; REFUSED_STREAM; received from peer"), retry.ClassTransient},
		{inPost("stream error: stream ID 3; INTERNAL_ERROR; received from peer"), retry.ClassUnknown},
		{inPost("http2: server sent GOAWAY and closed the connection; LastStreamID=3, ErrCode=NO_ERROR, debug=\"\""), retry.ClassUnknown},
		{inPost("http2: client connection lost"), retry.ClassUnknown},
		{inPost("net/http: request canceled"), retry.ClassUnknown},
		{inPost("something new"), retry.ClassNone},
		{os.ErrDeadlineExceeded, retry.ClassUnknown},
		{&url.Error{Op: "Post", Err: os.ErrDeadlineExceeded}, retry.ClassUnknown},
		{errors.Join(errors.New("book"), fmt.Errorf("a: %w", os.ErrDeadlineExceeded)), retry.ClassUnknown},
	} {
		if got := retry.ClassifyNet(tc.err); got != tc.want {
			t.Errorf("ClassifyNet(%v) = %q, want %q", tc.err, got, tc.want)
		}
	}
}
