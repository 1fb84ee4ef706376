package retry

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Kind says how the ceiling of a delay grows with the attempts.
type Kind string

// The kinds of backoff. The strings are stored and stable.
const (
	// Fixed waits Base after every attempt.
	Fixed Kind = "FIXED"
	// Linear waits Base × n after attempt n.
	Linear Kind = "LINEAR"
	// Exponential waits Base × 2ⁿ⁻¹ after attempt n.
	Exponential Kind = "EXPONENTIAL"
	// Custom waits Delays[n-1] after attempt n; the last entry repeats.
	Custom Kind = "CUSTOM"
)

// Defaults of a Policy.
const (
	DefaultBase        = 2 * time.Second
	DefaultCap         = time.Hour
	DefaultMaxAttempts = 15
	DefaultDeadline    = 7 * 24 * time.Hour
	DefaultUnit        = time.Millisecond
)

// Bounds of a Policy.
const (
	// MaxAttemptsLimit is the largest MaxAttempts.
	MaxAttemptsLimit = 1_000_000
	// MaxDelay is the longest delay and the longest deadline: ten years.
	MaxDelay = 10 * 365 * 24 * time.Hour
)

// Policy says how long a task waits between attempts and when it stops. The
// zero Policy is DefaultPolicy. A Policy in which anything is set must name its
// Kind and MaxAttempts; Check says what is wrong with it.
type Policy struct {
	// Kind of backoff. Required unless the whole Policy is zero.
	Kind Kind `json:"kind"`
	// Base is the first ceiling of FIXED, LINEAR and EXPONENTIAL: above zero,
	// zero meaning DefaultBase. Unused by CUSTOM.
	Base time.Duration `json:"base,omitempty"`
	// Cap bounds every ceiling: at least Base; zero means DefaultCap, or Base
	// where that is longer.
	Cap time.Duration `json:"cap,omitempty"`
	// Delays are the ceilings of CUSTOM, each above zero.
	Delays []time.Duration `json:"delays,omitempty"`
	// MaxAttempts bounds the durable attempts: 1 to MaxAttemptsLimit. The
	// inline run of the local tier does not count, and neither do crashes.
	MaxAttempts int `json:"max_attempts"`
	// Deadline bounds the time from a task's first due time to its last
	// attempt. Zero means DefaultDeadline.
	Deadline time.Duration `json:"deadline,omitempty"`
	// Unit is what jittered delays are rounded down to; a delay is at least
	// one Unit. Zero means DefaultUnit.
	Unit time.Duration `json:"unit,omitempty"`
	// NoJitter waits exactly the ceiling. Tasks that failed together then
	// come back together.
	NoJitter bool `json:"no_jitter,omitempty"`
}

// DefaultPolicy waits 1–2 s at first and up to an hour at last: about three
// hours in all, so that an ordinary outage of a dependency is outlived.
func DefaultPolicy() Policy {
	return Policy{
		Kind: Exponential, Base: DefaultBase, Cap: DefaultCap,
		MaxAttempts: DefaultMaxAttempts, Deadline: DefaultDeadline, Unit: DefaultUnit,
	}
}

func (p Policy) isZero() bool {
	return p.Kind == "" && p.Base == 0 && p.Cap == 0 && len(p.Delays) == 0 &&
		p.MaxAttempts == 0 && p.Deadline == 0 && p.Unit == 0 && !p.NoJitter
}

// WithDefaults returns p with its zero fields set as their comments say. It
// does not change what is wrong.
func (p Policy) WithDefaults() Policy {
	if p.isZero() {
		return DefaultPolicy()
	}
	if p.Kind != Custom && p.Base == 0 {
		p.Base = DefaultBase
	}
	if p.Cap == 0 {
		p.Cap = max(DefaultCap, p.Base)
		for _, d := range p.Delays {
			p.Cap = max(p.Cap, d)
		}
	}
	if p.Deadline == 0 {
		p.Deadline = DefaultDeadline
	}
	if p.Unit == 0 {
		p.Unit = DefaultUnit
	}
	return p
}

// Check returns every *FieldError of p, or nothing. p is checked as
// WithDefaults would complete it.
func (p Policy) Check() []error {
	p = p.WithDefaults()
	var errs []error
	bad := func(field string, value any, allowed string) {
		errs = append(errs, NewFieldError("policy."+field, value, allowed))
	}
	longest := fmt.Sprintf("at most %v (ten years)", MaxDelay)
	switch p.Kind {
	case Fixed, Linear, Exponential:
		if p.Base <= 0 || p.Base > MaxDelay {
			bad("base", p.Base, "above 0 and "+longest)
		}
		if len(p.Delays) > 0 {
			bad("delays", p.Delays, "empty unless kind is CUSTOM")
		}
	case Custom:
		if len(p.Delays) == 0 {
			bad("delays", "[]", "at least one delay where kind is CUSTOM")
		}
		if p.Base != 0 {
			bad("base", p.Base, "unset where kind is CUSTOM")
		}
		for i, d := range p.Delays {
			if d <= 0 || d > MaxDelay {
				bad(fmt.Sprintf("delays[%d]", i), d, "above 0 and "+longest)
			}
		}
	default:
		bad("kind", string(p.Kind), "FIXED, LINEAR, EXPONENTIAL or CUSTOM")
	}
	switch {
	case p.Cap <= 0 || p.Cap > MaxDelay:
		bad("cap", p.Cap, "above 0 and "+longest)
	case p.Cap < p.Base:
		bad("cap", p.Cap, fmt.Sprintf("at least base (%v)", p.Base))
	}
	if p.MaxAttempts < 1 || p.MaxAttempts > MaxAttemptsLimit {
		bad("max_attempts", p.MaxAttempts, fmt.Sprintf("1 to %d", MaxAttemptsLimit))
	}
	if p.Deadline <= 0 || p.Deadline > MaxDelay {
		bad("deadline", p.Deadline, "above 0 and "+longest)
	}
	if p.Unit < 0 || p.Unit > p.Cap {
		bad("unit", p.Unit, "above 0 and at most cap")
	}
	return errs
}

// Ceiling is the longest wait after attempt n, at most Cap. Attempt 0 (the
// inline run) waits like attempt 1. It cannot overflow.
func (p Policy) Ceiling(n int) time.Duration {
	p = p.WithDefaults()
	n = max(n, 1)
	var c uint64
	switch p.Kind {
	case Custom:
		if len(p.Delays) == 0 {
			return 0
		}
		c = uint64(p.Delays[min(n, len(p.Delays))-1])
	case Linear:
		hi, lo := bits.Mul64(uint64(p.Base), uint64(n))
		if c = lo; hi != 0 {
			c = math.MaxUint64
		}
	case Exponential:
		if c = math.MaxUint64; n-1 < bits.LeadingZeros64(uint64(p.Base)) {
			c = uint64(p.Base) << (n - 1)
		}
	default:
		c = uint64(p.Base)
	}
	return time.Duration(min(c, uint64(p.Cap)))
}

// Delay is how long task id waits after attempt n: Jitter of the Ceiling,
// rounded down to Unit, at least one Unit and at most Cap.
func (p Policy) Delay(id string, n int) time.Duration {
	p = p.WithDefaults()
	return p.spread(id, n, p.Ceiling(n))
}

// spread jitters a ceiling; p has its defaults.
func (p Policy) spread(id string, n int, d time.Duration) time.Duration {
	if !p.NoJitter {
		d = Jitter(id, n, d)
	}
	d -= d % p.Unit
	return min(max(d, p.Unit), p.Cap)
}
