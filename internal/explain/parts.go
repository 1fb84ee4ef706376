package explain

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// Parts are the steps from a policy to a delay, in order.
type Parts struct {
	// Phase whose policy it is. Charged is, in execute, the attempt's number without those that are not
	// charged, and the number of the try else. Below 1 it waits like 1.
	Phase   retry.Phase `json:"phase"`
	Charged int         `json:"charged"`
	// Ceiling is the longest wait after it, and Formula says how it grows.
	Ceiling time.Duration `json:"ceiling"`
	Formula string        `json:"formula"`
	// HashInput and Fraction are the jitter's: f = the first 4 bytes of SHA-256(HashInput) / (2³²−1). Empty without jitter.
	HashInput string  `json:"hash_input,omitempty"`
	Fraction  float64 `json:"fraction,omitempty"`
	// Jittered is ceiling × (0.5 + 0.5·f), rounded down to Unit.
	Jittered time.Duration `json:"jittered"`
	Unit     time.Duration `json:"unit"`
	// RetryAfter is what the other side asked for. The longer of the two counts.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Delay is that, rounded up to the grid.
	Delay time.Duration `json:"delay"`
	// TooLate says that the deadline comes before the delay is over.
	TooLate bool `json:"too_late,omitempty"`
}

// parts returns nil where Decide stops before it works a delay out.
func parts(r retry.Rules, f retry.Facts) *Parts {
	whole := retry.Decide(r, f)
	open := f
	open.Deadline = 0
	d := retry.Decide(r, open)
	if d.Reason != retry.ReasonScheduleRetry || (whole.Reason != retry.ReasonScheduleRetry && f.Elapsed >= f.Deadline) {
		return nil
	}
	p, n := retry.Basis(r, f, d.Phase)
	out := &Parts{
		Phase: d.Phase.OrExecute(), Charged: n, Ceiling: d.Ceiling, Jittered: d.Jittered, Unit: p.Unit, RetryAfter: d.RetryAfter, Delay: d.Delay,
		TooLate: whole.Reason != retry.ReasonScheduleRetry,
	}
	out.Formula = formula(p, max(out.Charged, 1))
	if !p.NoJitter {
		out.HashInput = fmt.Sprintf("%d:%d", f.TaskID, f.Attempt)
		out.Fraction = fraction(out.HashInput)
	}
	return out
}

// fraction is the f of retry.Jitter.
func fraction(input string) float64 {
	sum := sha256.Sum256([]byte(input))
	return float64(binary.BigEndian.Uint32(sum[:4])) / math.MaxUint32
}

// formula says where a ceiling comes from. n is 1 or more; p has its defaults.
func formula(p retry.Policy, n int) string {
	switch p.Kind {
	case retry.Custom:
		return fmt.Sprintf("%s: number %d of %d delays, at most %v", p.Kind, min(n, len(p.Delays)), len(p.Delays), p.Cap)
	case retry.Linear:
		return fmt.Sprintf("%s: %v × %d, at most %v", p.Kind, p.Base, n, p.Cap)
	case retry.Exponential:
		return fmt.Sprintf("%s: %v × 2^%d, at most %v", p.Kind, p.Base, n-1, p.Cap)
	}
	return fmt.Sprintf("%s: %v, at most %v", p.Kind, p.Base, p.Cap)
}
