package retry

import (
	"errors"
	"time"
)

// Class says what an error means for the next step. The strings are stored and
// stable. The zero value means "not classed yet".
type Class string

// Error classes.
const (
	// ClassNone is no error, or one that nothing has classed yet.
	ClassNone Class = ""
	// ClassPermanent errors are never tried again.
	ClassPermanent Class = "permanent"
	// ClassTransient errors are known not to have taken effect, or repeating
	// is known to be safe; they spend the budget.
	ClassTransient Class = "transient"
	// ClassUnknown errors may have taken effect on the other side.
	ClassUnknown Class = "unknown"
)

// mark is an error with a class and, where the other side named one, a time to
// wait. It keeps the wrapped error's text.
type mark struct {
	err   error
	class Class // ClassNone where only after is marked
	after time.Duration
}

func (m *mark) Error() string { return m.err.Error() }
func (m *mark) Unwrap() error { return m.err }

// Permanent marks err as never to be tried again. nil stays nil.
func Permanent(err error) error { return marked(err, ClassPermanent) }

// Transient marks err as worth another attempt and known not to have taken
// effect. nil stays nil.
func Transient(err error) error { return marked(err, ClassTransient) }

// Unknown marks err as possibly having taken effect. nil stays nil.
func Unknown(err error) error { return marked(err, ClassUnknown) }

func marked(err error, c Class) error {
	if err == nil {
		return nil
	}
	return &mark{err: err, class: c}
}

// After notes that the other side asked to wait for d (as Retry-After does).
// It says nothing about the class. nil stays nil; d below zero counts as zero.
func After(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &mark{err: err, after: max(d, 0)}
}

// MarkedClass returns the class that is marked anywhere in err's tree, or
// ClassNone. Along a chain the outermost mark wins, because whoever wrapped last
// knew most. In a joined error unknown wins, then permanent, then transient: if one part
// may have taken effect, the whole may have.
func MarkedClass(err error) Class {
	for err != nil {
		if m, ok := err.(*mark); ok && m.class != ClassNone {
			return m.class
		}
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			found := ClassNone
			for _, e := range j.Unwrap() {
				found = graver(found, MarkedClass(e))
			}
			return found
		}
		err = errors.Unwrap(err)
	}
	return ClassNone
}

func graver(a, b Class) Class {
	rank := func(c Class) int {
		switch c {
		case ClassUnknown:
			return 3
		case ClassPermanent:
			return 2
		case ClassTransient:
			return 1
		case ClassNone:
		}
		return 0
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// RetryAfter returns the longest wait that is marked anywhere in err's tree
// and whether there is one.
func RetryAfter(err error) (time.Duration, bool) {
	var longest time.Duration
	found := false
	for err != nil {
		if m, ok := err.(*mark); ok && m.class == ClassNone {
			longest, found = max(longest, m.after), true
		}
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range j.Unwrap() {
				if d, ok := RetryAfter(e); ok {
					longest, found = max(longest, d), true
				}
			}
			break
		}
		err = errors.Unwrap(err)
	}
	return longest, found
}
