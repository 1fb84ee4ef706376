package amqpconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/mask"
)

// ErrClosed says that Close was called.
var ErrClosed = errors.New("amqp connection closed")

// DialError says why there is no connection. It shows no password.
type DialError struct {
	// URL that was dialled, with its password masked.
	URL string
	// Hint says what a person should look at. Empty: nothing to add.
	Hint string
	// Permanent says that it looks like a matter of configuration. It is tried
	// again nevertheless: configuration changes too.
	Permanent bool
	Err       error
}

// Error implements error.
func (e *DialError) Error() string {
	text := fmt.Sprintf("connect to %s: %s", e.URL, mask.Text(text(e.Err)))
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

// Unwrap returns Err.
func (e *DialError) Unwrap() error { return e.Err }

// lostError says why a connection ended.
type lostError struct {
	cause *amqp.Error
	first error // what went wrong on the socket first; nil: nothing
}

func (e *lostError) Error() string {
	switch {
	case e.cause.Server:
		return "closed by the broker: " + text(e.cause)
	case e.first != nil:
		return "connection lost: " + e.first.Error()
	}
	return "connection lost: " + text(e.cause)
}

func (e *lostError) Unwrap() error { return e.cause }

// text is the error's, without the client library's ornament.
func text(err error) string {
	var ae *amqp.Error
	switch {
	case !errors.As(err, &ae):
		return err.Error()
	case ae.Server:
		return fmt.Sprintf("%d %s", ae.Code, ae.Reason)
	}
	return ae.Reason
}

// explain makes a DialError. w is nil if no socket was opened, ctx the dial's.
func explain(ctx context.Context, url string, timeout time.Duration, w *wire, err error) *DialError {
	e := &DialError{URL: mask.URL(url), Err: err}
	var ae *amqp.Error
	var unknownCA x509.UnknownAuthorityError
	var host x509.HostnameError
	var cert x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case w != nil && ctx.Err() != nil:
		e.Err = fmt.Errorf("no complete handshake within %v: %w", timeout, ctx.Err())
	case errors.As(err, &alert), w != nil && strings.Contains(err.Error(), "remote error: tls:"):
		e.Permanent, e.Hint = true, "the broker refuses ours: check the certificates"
	case w != nil && strings.HasPrefix(url, "amqps:") && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) || errors.Is(err, amqp.ErrClosed)):
		// With TLS 1.3 a broker refuses our certificate after the handshake, and its word can
		// get lost with the connection, or with the library's end of it. One that goes down looks the same.
		e.Hint = "the broker hung up; if it asks for a client certificate, check the certificates"
	case errors.Is(err, amqp.ErrCredentials):
		// The library says so for whatever ends the connection while it logs in. A
		// broker that refuses hangs up after some seconds, without a word, because the
		// library does not announce that it would understand one. A broker that
		// goes down at that moment looks the same.
		e.Permanent, e.Hint = true, "the broker hung up during the login: check user and password"
	case errors.Is(err, amqp.ErrVhost):
		e.Err = fmt.Errorf("connection lost while the vhost was opened: %w", lostOr(w, err))
	case errors.As(err, &ae) && ae.Code == amqp.AccessRefused:
		e.Permanent, e.Hint = true, "check user, password and the user's permissions"
	case errors.As(err, &ae) && ae.Code == amqp.NotAllowed:
		e.Permanent, e.Hint = true, "check the vhost at the end of the url, and the limits on connections"
	case errors.Is(err, amqp.ErrSASL):
		e.Permanent, e.Hint = true, "the broker offers no such way to log in"
	case errors.As(err, &unknownCA), errors.As(err, &host), errors.As(err, &cert):
		e.Permanent, e.Hint = true, "check the certificates"
	case errors.As(err, &record):
		e.Permanent, e.Hint = true, "that port does not speak TLS; amqps is usually 5671, amqp 5672"
	}
	return e
}

func lostOr(w *wire, err error) error {
	if w != nil && w.failure() != nil {
		return w.failure()
	}
	return err
}
