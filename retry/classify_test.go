package retry_test

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/spillway-mq/spillway/retry"
)

func TestFirstOf(t *testing.T) {
	errA, errB := errors.New("a"), errors.New("b")
	only := func(target error, c retry.Class) retry.Classifier {
		return func(err error) retry.Class {
			if errors.Is(err, target) {
				return c
			}
			return retry.ClassNone
		}
	}
	list := []retry.Classifier{nil, only(errA, retry.ClassPermanent), only(errA, retry.ClassUnknown), only(errB, retry.ClassUnknown)}
	first := retry.FirstOf(list...)
	clear(list) // the classifier must not depend on the caller's slice

	for _, tc := range []struct {
		err  error
		want retry.Class
	}{
		{errA, retry.ClassPermanent},
		{errB, retry.ClassUnknown},
		{errors.New("c"), retry.ClassNone},
		{nil, retry.ClassNone},
	} {
		if got := first(tc.err); got != tc.want {
			t.Errorf("FirstOf(...)(%v) = %q, want %q", tc.err, got, tc.want)
		}
	}
	if got := retry.FirstOf()(errA); got != retry.ClassNone {
		t.Errorf("FirstOf()(a) = %q, want none", got)
	}
}

func TestClassifiersKnowNothingOfNilAndStrangers(t *testing.T) {
	for name, c := range map[string]retry.Classifier{
		"net":      retry.ClassifyNet,
		"sqlstate": retry.ClassifySQLState,
		"grpc":     retry.ClassifyGRPC(func(error) (uint32, bool) { return 0, false }, false),
		"grpc nil": retry.ClassifyGRPC(nil, true),
	} {
		for _, err := range []error{nil, errors.New("plain"), uncomparable{"x"}, fmt.Errorf("a: %w", uncomparable{"y"})} {
			if got := c(err); got != retry.ClassNone {
				t.Errorf("%s(%v) = %q, want none", name, err, got)
			}
		}
	}
}

// uncomparable panics if it is compared with another of its kind.
type uncomparable []string

func (u uncomparable) Error() string { return fmt.Sprint([]string(u)) }

func TestClassifyTree(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	for _, tc := range []struct {
		name string
		err  error
		want retry.Class
	}{
		{"a sentinel beside the cause", fmt.Errorf("%w: %w", errors.New("call failed"), dial), retry.ClassTransient},
		{"joined, the strictest", errors.Join(dial, reset), retry.ClassUnknown},
		{"joined, the order does not matter", errors.Join(reset, dial), retry.ClassUnknown},
		{"deep", fmt.Errorf("a: %w", errors.Join(fmt.Errorf("b: %w", dial))), retry.ClassTransient},
		{"below a mark", retry.After(1, dial), retry.ClassTransient},
	} {
		if got := retry.ClassifyNet(tc.err); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
