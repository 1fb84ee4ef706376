package retry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
)

// ClassifyNet classes errors of net, crypto/tls, net/http's client, io,
// syscall and context by one question: was anything of the request sent?
//
//   - Nothing was sent (name lookup, dial, proxy, TLS handshake): transient.
//     This includes unknown hosts and certificates that do not verify. They
//     are faults of configuration or of the moment, not a verdict on this
//     task; they are mended without touching the task, and until then the
//     budget and the deadline bound it. Permanent would fail every task of a
//     scene for one expired certificate.
//   - Sent, or no way to tell (reset, end of file, broken pipe, timeouts and
//     cancellations outside a dial): unknown.
//   - A URL that does not parse: permanent, since it never will.
//
// Anything else is ClassNone.
//
// What it cannot see, and how to help it:
//
//   - A context that ends while net/http dials gives the bare context error,
//     so unknown. Give the net.Dialer a Timeout shorter than the call's.
//   - A redirect that net/http followed after a POST: a refused dial to the
//     second address looks like one to the first. Set Client.CheckRedirect to
//     return http.ErrUseLastResponse for calls that take effect.
//   - net/http silently repeats requests on a reused connection if they are
//     idempotent or carry an Idempotency-Key; a refused dial can then follow a
//     request that was read. Transient is still right there, because such a
//     request may be repeated.
func ClassifyNet(err error) Class {
	if c := classTree(err, netClass); c != ClassNone {
		return c
	}
	// Timeouts that no rule above knows by name, such as net/http's "timeout
	// awaiting response headers". Only now, after the whole tree: url.Error
	// and other wrappers pass on Timeout from an inner error that may well be
	// a dial.
	return classTree(err, func(err error) Class {
		if t, ok := err.(interface{ Timeout() bool }); ok && t.Timeout() {
			return ClassUnknown
		}
		return ClassNone
	})
}

// netClass judges one error without unwrapping it.
func netClass(err error) Class {
	switch e := err.(type) {
	case *net.OpError:
		return opClass(e)
	case *net.DNSError:
		// Without an address nothing can have been sent. "No such host" is no
		// exception: it is what a service sees while its peer is redeployed,
		// and resolvers cache it for a while after.
		return ClassTransient
	case *url.Error:
		if e.Op == "parse" {
			// The request could not even be formed, and the same text parses
			// no better next time.
			return ClassPermanent
		}
		return ClassNone // the client's wrapper; its cause decides
	case *tls.CertificateVerificationError, x509.UnknownAuthorityError,
		x509.HostnameError, x509.CertificateInvalidError, x509.SystemRootsError,
		*tls.ECHRejectionError:
		// We broke off the handshake: the request stayed with us. Why this is
		// not permanent is said at ClassifyNet. The bare x509 errors come from
		// drivers that verify by themselves.
		return ClassTransient
	case tls.RecordHeaderError:
		if e.Conn != nil {
			// Set only where the very first record is not TLS: the other side
			// saw a ClientHello, nothing of ours.
			return ClassTransient
		}
		return ClassUnknown // garbage later in the stream
	}

	switch {
	case isNode(err, http.ErrSchemeMismatch):
		// The same as the first record above: net/http replaces the error
		// when the record reads "HTTP/".
		return ClassTransient

	case isNode(err, syscall.ECONNREFUSED), isNode(err, syscall.EADDRNOTAVAIL):
		// Outside a net.OpError, so from a driver that unwrapped it. On a
		// stream socket only connecting gives these (the second when the local
		// ports are used up).
		return ClassTransient

	case isNode(err, syscall.ECONNRESET), isNode(err, syscall.ECONNABORTED),
		isNode(err, syscall.EPIPE), isNode(err, syscall.ENOTCONN), isNode(err, syscall.ESHUTDOWN):
		// The connection existed. EPIPE tells that this write failed, not
		// that the writes before it were not acted on.
		return ClassUnknown

	case isNode(err, syscall.ETIMEDOUT), isNode(err, syscall.EHOSTUNREACH),
		isNode(err, syscall.ENETUNREACH), isNode(err, syscall.ENETDOWN):
		// Both connecting and an established connection give these. Inside a
		// dial we never come here; bare, there is no way to tell.
		return ClassUnknown

	case isNode(err, io.EOF), isNode(err, io.ErrUnexpectedEOF), isNode(err, io.ErrClosedPipe),
		isNode(err, io.ErrShortWrite):
		// The other side closed in the place of an answer, or within it. A
		// server that closes during the TLS handshake looks the same, which
		// costs an unneeded "unknown".
		return ClassUnknown

	case isNode(err, net.ErrClosed):
		// Our own process closed the connection under the call, at any point.
		return ClassUnknown

	case isNode(err, context.Canceled), isNode(err, context.DeadlineExceeded):
		// They say when we stopped waiting, not how far the request had come.
		return ClassUnknown
	}
	return netTextClass(err.Error())
}

// opClass judges by the operation: it alone says whether this was before or
// after sending.
func opClass(e *net.OpError) Class {
	switch e.Op {
	case "dial", "proxyconnect", "socks connect":
		// No connection to the other side came about, whatever the cause
		// (refused, no route, timeout, canceled, a bad address). The last two
		// are net/http on its way through a proxy, before the request.
		return ClassTransient
	case "remote error", "local error":
		// A TLS alert, by the peer or by us.
		if isHandshakeAlert(e.Err) {
			return ClassTransient
		}
		return ClassUnknown
	case "read", "write", "readfrom", "writeto", "sendfile", "splice":
		// There was a connection. A failed write may have passed on a whole
		// request before it failed, and a failed read follows a write.
		return ClassUnknown
	}
	return ClassNone // "set", "close", …: the cause decides
}

// handshakeAlerts are alerts that RFC 8446 section 6.2 and its predecessors
// define for the handshake alone. In TLS 1.3 the client may have written its
// request already when the alert arrives (it ends its handshake first), but a
// server acts on nothing before it ended its own.
var handshakeAlerts = [...]tls.AlertError{
	40,  // handshake failure
	42,  // bad certificate
	43,  // unsupported certificate
	44,  // revoked certificate
	45,  // expired certificate
	46,  // unknown certificate
	48,  // unknown certificate authority
	49,  // access denied
	51,  // error decrypting message: a signature or Finished did not verify
	70,  // protocol version not supported
	71,  // insufficient security level
	86,  // inappropriate fallback
	109, // missing extension
	110, // unsupported extension
	112, // unrecognized name
	113, // bad certificate status response
	115, // unknown PSK identity
	116, // certificate required
	120, // no application protocol
	121, // encrypted client hello required
}

// isHandshakeAlert compares texts because crypto/tls keeps the type of the
// alert in a net.OpError to itself; tls.AlertError has the same texts.
func isHandshakeAlert(err error) bool {
	return err != nil && slices.ContainsFunc(handshakeAlerts[:], func(a tls.AlertError) bool {
		return a.Error() == err.Error()
	})
}

// netTextClass knows errors that net/http neither exports nor wraps. Their
// texts have been stable for many releases.
func netTextClass(text string) Class {
	switch {
	case text == "net/http: TLS handshake timeout":
		return ClassTransient // the request waits for the handshake

	case text == "http: server closed idle connection":
		// Despite its name: the server's FIN crossed a request that may have
		// been written. net/http itself repeats only replayable requests on
		// this, never a plain POST.
		return ClassUnknown

	case text == "http2: Transport received Server's graceful shutdown GOAWAY",
		strings.HasPrefix(text, "http2: Transport: cannot retry err [http2: Transport received Server's graceful shutdown GOAWAY]"):
		// Given only to streams above the last one that the server says it
		// will process (RFC 9113 section 6.8).
		return ClassTransient

	case strings.HasPrefix(text, "stream error: stream ID "),
		strings.HasPrefix(text, "http2: Transport: cannot retry err [stream error: stream ID "):
		if strings.Contains(text, "; REFUSED_STREAM") {
			// Promises that no processing took place (RFC 9113 section 8.7).
			return ClassTransient
		}
		return ClassUnknown

	case strings.HasPrefix(text, "net/http: HTTP/1.x transport connection broken"),
		strings.HasPrefix(text, "http2: server sent GOAWAY and closed the connection"),
		text == "http2: client connection lost",
		strings.HasPrefix(text, "net/http: request canceled"):
		return ClassUnknown // lost or left while a request was under way
	}
	return ClassNone
}
