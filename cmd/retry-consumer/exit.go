package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/retry"
)

// Exit codes. They are stable.
const (
	exitOK          = 0
	exitFailed      = 1 // it failed or was refused, or differences were found
	exitUsage       = 2 // wrong arguments, settings or files; a login that the server refuses
	exitUnreachable = 3 // a server could not be reached, or not in time
	exitSchema      = 4 // the database's schema does not fit this build
	exitSignal      = 128
)

const exitHelp = `Exit codes:
  0    all went well
  1    it failed or was refused (for some of several: for at least one), "verify" found differences, or "explain" found what
       does not match
  2    wrong arguments, settings or files, or a login or database that the server does not know
  3    Postgres or RabbitMQ could not be reached, or not in time
  4    the database's schema is older or newer than this build
  130  ended by SIGINT; 143 by SIGTERM (serve ends in good order with 0 on the first one, at once on a second)`

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error // nil: everything was said already
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap returns the error itself.
func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// said is an exit with code whose reason was printed already.
func said(code int) error { return &exitError{code: code} }

func isSilent(err error) bool {
	var e *exitError
	return errors.As(err, &e) && e.err == nil
}

// stoppedError says that a signal ended the command.
type stoppedError struct{ sig os.Signal }

// Error implements error.
func (e *stoppedError) Error() string { return "stopped by " + e.sig.String() }

func signalCode(sig os.Signal) int {
	if n, ok := sig.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitFailed
}

// codeOf says with which code an error ends the process.
func codeOf(err error) int {
	var e *exitError
	var stopped *stoppedError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	case errors.As(err, &stopped):
		return signalCode(stopped.sig)
	case errors.Is(err, retry.ErrSchema):
		return exitSchema
	case errors.Is(err, retry.ErrInvalid), isRefusedLogin(err):
		return exitUsage
	case isUnreachable(err):
		return exitUnreachable
	}
	return exitFailed
}

// isRefusedLogin: the server is there and does not know who or what we ask for. Waiting does not help.
func isRefusedLogin(err error) bool {
	var pe *pq.Error
	if errors.As(err, &pe) {
		switch pe.Code {
		case "28P01", "28000", "3D000": // password, login, database
			return true
		}
		return false
	}
	// The client's own errors, and the codes behind them.
	var ae *amqp.Error
	if errors.As(err, &ae) {
		return ae.Code == amqp.AccessRefused || ae.Code == amqp.NotAllowed
	}
	return false
}

// isUnreachable: there is no server, not yet or no longer.
func isUnreachable(err error) bool {
	var pe *pq.Error
	if errors.As(err, &pe) {
		// 08 connection exception, 57P shutting down or starting up, 53300 too many connections.
		return pe.Code.Class() == "08" || pe.Code == "57P01" || pe.Code == "57P02" || pe.Code == "57P03" || pe.Code == "53300"
	}
	var ae *amqp.Error
	if errors.As(err, &ae) {
		return ae.Code == amqp.ConnectionForced || ae.Code == amqp.ChannelError
	}
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded)
}
