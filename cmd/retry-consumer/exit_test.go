package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/serve"
	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func TestExitCodes(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{errors.New("anything"), exitFailed},
		{retry.ErrState, exitFailed},
		{retry.ErrNotFound, exitFailed},
		{retry.ErrKeyConflict, exitFailed},
		{said(exitFailed), exitFailed},
		{context.Canceled, exitFailed},
		{&pq.Error{Code: "42601"}, exitFailed},
		{usageError("x"), exitUsage},
		{&settings.Error{}, exitUsage},
		{&serve.FileError{}, exitUsage},
		{retry.NewFieldError("a", "b", "c"), exitUsage},
		{&pq.Error{Code: "28P01"}, exitUsage},
		{&pq.Error{Code: "3D000"}, exitUsage},
		{amqp.ErrCredentials, exitUsage},
		{amqp.ErrVhost, exitUsage},
		{refused, exitUnreachable},
		{&net.DNSError{}, exitUnreachable},
		{io.EOF, exitUnreachable},
		{context.DeadlineExceeded, exitUnreachable},
		{os.ErrDeadlineExceeded, exitUnreachable},
		{&pq.Error{Code: "57P03"}, exitUnreachable},
		{&pq.Error{Code: "53300"}, exitUnreachable},
		{&amqp.Error{Code: amqp.ConnectionForced}, exitUnreachable},
		{&tls.CertificateVerificationError{}, exitFailed},
		{retry.ErrSchema, exitSchema},
		{&stoppedError{sig: os.Interrupt}, 130},
		{&stoppedError{sig: syscall.SIGTERM}, 143},
	} {
		err := tt.err
		if err != nil {
			err = fmt.Errorf("doing something: %w", err)
		}
		if got := codeOf(err); got != tt.want {
			t.Errorf("%v: got %d, want %d", err, got, tt.want)
		}
	}
	for _, code := range []int{exitOK, exitFailed, exitUsage, exitUnreachable, exitSchema, 130} {
		if !strings.Contains(exitHelp, fmt.Sprintf("\n  %d ", code)) {
			t.Errorf("the help does not explain exit code %d", code)
		}
	}
}

func TestWords(t *testing.T) {
	decision := &retry.Decision{Delay: 1500 * time.Millisecond, Ceiling: 2 * time.Second, Jittered: 1200 * time.Millisecond, RetryAfter: time.Second}
	for want, e := range map[string]persistence.Event{
		"enqueued by web-1": {Reason: retry.ReasonEnqueued, Actor: "web-1"},
		"the inline run failed (transient): boom; tries again in 1.5s (1.2s of at most 2s, asked to wait 1s)": {Reason: retry.ReasonScheduleRetry, Class: retry.ClassTransient, Error: "boom", Decision: decision},
		"attempt 3 failed (permanent) by c-1: boom; such an error never ends well: stopped as FAILED":         {Reason: retry.ReasonFailPermanent, Attempt: 3, Class: retry.ClassPermanent, Error: "boom", Actor: "c-1", To: retry.StatusFailed},
		"attempt 1 failed (unknown); it may have taken effect: waits for a person":                            {Reason: retry.ReasonManualReview, Attempt: 1, Class: retry.ClassUnknown},
		"attempt 2 failed; no time left: stopped as FAILED":                                                   {Reason: retry.ReasonDeadlineExceeded, Attempt: 2, To: retry.StatusFailed},
		"attempt 2 failed; no attempts left: stopped as FAILED":                                               {Reason: retry.ReasonAttemptsExhausted, Attempt: 2, To: retry.StatusFailed},
		"attempt 2 ended without a word (its lease ran out) by c-1; too many such ends: waits for a person":   {Reason: retry.ReasonCrashLoop, Attempt: 2, Actor: "c-1", Facts: &retry.Facts{Crashed: true}},
		"attempt 2 was handed back before it began by c-1":                                                    {Reason: retry.ReasonReleased, Attempt: 2, Actor: "c-1"},
		"attempt 2 succeeded":                          {Reason: retry.ReasonSuccess, Attempt: 2},
		"made due now by ada; was FAILED (please)":     {Reason: retry.ReasonOperatorRetry, Actor: "ada", From: retry.StatusFailed, Note: "please"},
		"ended as CANCELLED by ada; was WAIT":          {Reason: retry.ReasonOperatorCancel, Actor: "ada", From: retry.StatusWait, To: retry.StatusCancelled},
		"something_new: WAIT → EXECUTING by c-1: what": {Reason: "something_new", From: retry.StatusWait, To: retry.StatusExecuting, Actor: "c-1", Error: "what"},
	} {
		if got := words(e); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1234567 * time.Nanosecond: "1ms", 9*time.Second + 87*time.Millisecond: "9.087s", 75 * time.Second: "1m15s",
		3*time.Hour + 59*time.Minute: "3h59m", 50 * time.Hour: "2d2h", -time.Second: "-1s",
	} {
		if got := span(d); got != want {
			t.Errorf("%d: got %s, want %s", d, got, want)
		}
	}
}

func TestOutputIsClean(t *testing.T) {
	// What a handler wrote must not steer the terminal of a person who looks at it.
	var out buffer
	p := &printer{w: &out}
	p.rows([]string{"A", "B"}, [][]string{{"x\x1b[31m", "two\nlines\tand a tab"}})
	if p.err != nil || strings.ContainsAny(out.String(), "\x1b\t") || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("%q %v", out.String(), p.err)
	}
}
