package retry

import (
	"errors"
	"fmt"
	"time"
)

// UnknownMode says what a scene wants when nobody knows whether an attempt took
// effect. The strings are stored and stable.
type UnknownMode string

// The modes. The zero value is UnknownReview: nothing is repeated by accident.
const (
	// UnknownReview stops the task for a person.
	UnknownReview UnknownMode = "review"
	// UnknownRepeat says that repeating is safe.
	UnknownRepeat UnknownMode = "repeat"
	// UnknownAsk asks the other side before anything is redone.
	UnknownAsk UnknownMode = "ask"
)

// Defaults of the local tier.
const (
	DefaultLocalRetries = 2
	DefaultLocalPause   = 200 * time.Millisecond
)

// Local is the local tier: the retries inside the caller's goroutine before
// anything is remembered.
type Local struct {
	// Retries after the first call. Zero means DefaultLocalRetries; below zero
	// means none.
	Retries int
	// Pause before each retry. Zero means DefaultLocalPause; below zero means
	// none.
	Pause time.Duration
}

// WithDefaults returns l with zero fields set and negative ones made zero.
func (l Local) WithDefaults() Local {
	switch {
	case l.Retries == 0:
		l.Retries = DefaultLocalRetries
	case l.Retries < 0:
		l.Retries = 0
	}
	switch {
	case l.Pause == 0:
		l.Pause = DefaultLocalPause
	case l.Pause < 0:
		l.Pause = 0
	}
	return l
}

// Scene is a kind of task. Publisher and consumer of a service share one value.
type Scene struct {
	// Name as CheckScene allows it. Required.
	Name string
	// Policy of the durable tier. Zero: DefaultPolicy.
	Policy Policy
	// Local tier of publisher.Do. Zero: two retries, 200 ms apart.
	Local Local
	// Unknown says what an unknown outcome means. Zero: UnknownReview.
	Unknown UnknownMode
	// Classify classes errors that carry no mark. nil knows nothing.
	Classify func(error) Class
	// MaxCrashes bounds the runs that end without a word. Zero:
	// DefaultMaxCrashes.
	MaxCrashes int
	// QueryPolicy and CallbackPolicy say when these handlers are tried again, and how
	// often (MaxAttempts counts the tries since the task needs that handler). Zero:
	// DefaultPolicy. Deadline is not used: the task has one, Policy's.
	QueryPolicy    Policy
	CallbackPolicy Policy
	// Timeout bounds one call of a handler through its context. Zero: none, it
	// may take as long as its lease is renewed.
	Timeout time.Duration
	// Concurrency bounds how many tasks of the scene one consumer process runs
	// at once. Zero: only the consumer's own bound.
	Concurrency int
	// ReuseKey lets a key be used again once its task is terminal.
	ReuseKey bool
}

// Check returns every *FieldError of s joined, or nil.
func (s Scene) Check() error {
	errs := []error{CheckScene(s.Name)}
	errs = append(errs, s.Policy.Check()...)
	for name, p := range map[string]Policy{"query_policy": s.QueryPolicy, "callback_policy": s.CallbackPolicy} {
		for _, err := range p.Check() {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	bad := func(field string, value any, allowed string) {
		errs = append(errs, NewFieldError(field, value, allowed))
	}
	switch s.Unknown {
	case "", UnknownReview, UnknownRepeat, UnknownAsk:
	default:
		bad("unknown", string(s.Unknown), "review, repeat or ask")
	}
	if s.MaxCrashes < 0 {
		bad("max_crashes", s.MaxCrashes, fmt.Sprintf("0 (meaning %d) or more", DefaultMaxCrashes))
	}
	if s.Timeout < 0 {
		bad("timeout", s.Timeout, "0 (none) or more")
	}
	if s.Concurrency < 0 {
		bad("concurrency", s.Concurrency, "0 (no bound of its own) or more")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("scene %q: %w", CutString(s.Name, 80), err)
	}
	return nil
}

// ClassOf classes an attempt's error: the mark in its chain, else what Classify
// says, else transient where repeating is safe, else unknown. nil has no class.
func (s Scene) ClassOf(err error) Class {
	if err == nil {
		return ClassNone
	}
	if c := MarkedClass(err); c != ClassNone {
		return c
	}
	if s.Classify != nil {
		if c := s.Classify(err); c != ClassNone {
			return c
		}
	}
	if s.Unknown == UnknownRepeat {
		return ClassTransient
	}
	return ClassUnknown
}

// Rules returns what Decide needs of s on a topology that can express grid.
func (s Scene) Rules(grid Grid) Rules {
	r := Rules{Policy: s.Policy.WithDefaults(), Unknown: s.Unknown, MaxCrashes: s.MaxCrashes, Grid: grid}
	if r.Unknown == "" {
		r.Unknown = UnknownReview
	}
	if r.MaxCrashes == 0 {
		r.MaxCrashes = DefaultMaxCrashes
	}
	// Left out where they say nothing, so that a scene without these handlers keeps its versions.
	if r.Unknown == UnknownAsk || !s.QueryPolicy.isZero() {
		p := s.QueryPolicy.WithDefaults()
		r.Query = &p
	}
	if r.Unknown == UnknownAsk || !s.CallbackPolicy.isZero() {
		p := s.CallbackPolicy.WithDefaults()
		r.Callback = &p
	}
	return r
}
