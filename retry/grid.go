package retry

import (
	"math"
	"math/bits"
	"time"
)

// Grid is the set of delays that a topology can express. A wake-up time is
// rounded up to it before it is recorded, so that what is recorded is what the
// broker does.
//
// The zero value rounds nothing.
type Grid struct {
	// Unit is the smallest step. Zero or below: nothing is rounded.
	Unit time.Duration `json:"unit,omitempty"`
	// SignificantBits bounds how many hops a delay takes: a delay of more
	// units than fit into this many bits is rounded up to a multiple of a
	// power of two. Zero: every multiple of Unit is used as it is.
	SignificantBits int `json:"significant_bits,omitempty"`
	// Horizon is the longest delay that the topology can hold. Delays above
	// it wait in the store and are only rounded up to Unit. Zero: no horizon.
	Horizon time.Duration `json:"horizon,omitempty"`
}

// Up rounds d up to the grid: never down, so never early. Negative durations
// count as zero. With 5 significant bits the result is less than 6.25 % above
// d (plus less than one unit).
func (g Grid) Up(d time.Duration) time.Duration {
	if d < 0 {
		d = 0
	}
	if g.Unit <= 0 {
		return d
	}
	units := ceilUnits(d, g.Unit)
	if g.SignificantBits > 0 && (g.Horizon <= 0 || d <= g.Horizon) {
		up := roundBits(units, g.SignificantBits)
		// Rounding up must not push a delay that the topology can hold
		// beyond what it can hold.
		if g.Horizon <= 0 || up <= uint64(g.Horizon/g.Unit) {
			units = up
		}
	}
	if units > uint64(math.MaxInt64/int64(g.Unit)) {
		return math.MaxInt64
	}
	return time.Duration(units) * g.Unit
}

// ceilUnits is d/unit rounded up; d is not negative, unit is above zero.
func ceilUnits(d, unit time.Duration) uint64 {
	n := uint64(d / unit)
	if d%unit != 0 {
		n++
	}
	return n
}

// roundBits rounds n up to a number with at most b significant bits.
func roundBits(n uint64, b int) uint64 {
	shift := bits.Len64(n) - b
	if shift <= 0 {
		return n
	}
	step := uint64(1) << shift
	return (n + step - 1) &^ (step - 1)
}
