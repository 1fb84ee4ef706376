package retry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
)

func classify(ctx context.Context, err error, resp *http.Response) string {
	var (
		op   *net.OpError
		dns  *net.DNSError
		cert *tls.CertificateVerificationError
		ca   x509.UnknownAuthorityError
		uerr *url.Error
		no   syscall.Errno
		nerr net.Error
	)
	if errors.As(err, &op) || errors.As(err, &dns) || errors.As(err, &cert) || errors.As(err, &ca) || errors.As(err, &uerr) {
		return http.StatusText(resp.StatusCode)
	}
	if errors.As(err, &no) && no.Timeout() || errors.As(err, &nerr) && nerr.Timeout() {
		return resp.Header.Get("Retry-After")
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, http.ErrHandlerTimeout) {
		return resp.Request.URL.Host
	}
	_, _ = http.ParseTime("")
	return ""
}

func reachOut(ctx context.Context, c *http.Client, d net.Dialer, r io.Reader) {
	_, _ = http.Get("http://127.0.0.1")             // want `net/http.Get`
	_, _ = http.NewRequest("GET", "http://a", nil)  // want `net/http.NewRequest`
	_, _ = c.Do(nil)                                // want `net/http.Client\).Do`
	_, _ = c.Get("http://127.0.0.1")                // want `net/http.Client\).Get`
	_, _ = http.DefaultTransport.RoundTrip(nil)     // want `RoundTrip`
	_, _ = net.Dial("tcp", "127.0.0.1:1")           // want `net.Dial`
	_, _ = d.DialContext(ctx, "tcp", "127.0.0.1:1") // want `DialContext`
	_, _ = net.Listen("tcp", "127.0.0.1:0")         // want `net.Listen`
	_, _ = net.LookupHost("localhost")              // want `net.LookupHost`
	_, _ = tls.Dial("tcp", "127.0.0.1:1", nil)      // want `crypto/tls.Dial`
	_, _ = io.ReadAll(r)                            // want `io.ReadAll`
	_ = syscall.Getpid()                            // want `syscall.Getpid`
}
