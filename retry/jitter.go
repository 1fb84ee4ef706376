package retry

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"strconv"
	"time"
)

// Jitter spreads a delay over the upper half of ceiling: equal jitter from a
// hash, so that anyone can recompute it later (design, section 5):
//
//	ceiling × (0.5 + 0.5·f)
//
// where f is the first 4 bytes, big-endian, of SHA-256("<id>:<attempt>") divided
// by 2³²−1. It is computed in integers, rounded down, and never above ceiling. A
// ceiling of zero or below gives zero.
func Jitter(id string, attempt int, ceiling time.Duration) time.Duration {
	if ceiling <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(id + ":" + strconv.Itoa(attempt)))
	u := uint64(binary.BigEndian.Uint32(sum[:4]))
	const m = 1<<32 - 1
	// ceiling × (m+u) / 2m. The product has at most 63+33 bits and its high
	// word is below 2m, so the division cannot overflow.
	hi, lo := bits.Mul64(uint64(ceiling), m+u)
	q, _ := bits.Div64(hi, lo, 2*m)
	return time.Duration(q)
}
