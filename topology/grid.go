package topology

import (
	"time"

	"github.com/spillway-mq/spillway/retry"
)

const (
	// Levels is the number of tiers, and of bits in a routing key.
	Levels = 14
	// Unit is the TTL of level 0; each level's is twice that of the one below.
	Unit = 100 * time.Millisecond
	// Horizon is the longest delay that the tiers can hold, 27 min 18.3 s: all
	// levels in a row.
	Horizon = (1<<Levels - 1) * Unit
	// SignificantBits is how many bits of a delay are kept when it is rounded.
	SignificantBits = 5
)

// Grid is the set of delays that wake-ups should be rounded up to with
// retry.Grid.Up. At most 5 hops and less than 6.25 % above what was asked,
// except for the last 51 s below the horizon, which have no rounder number
// above them within reach: those are exact to 100 ms and take up to 14 hops.
func Grid() retry.Grid {
	return retry.Grid{Unit: Unit, SignificantBits: SignificantBits, Horizon: Horizon}
}

// LevelTTL is how long a message stays in a level from 0 to Levels-1.
func LevelTTL(level int) time.Duration { return Unit << level }

// Key returns the routing key with which a message published to Names.Delay
// comes to Names.Due after delay, which is rounded up to a multiple of Unit.
// It takes a hop per set bit; round delay with Grid().Up before to get few.
// Zero and negative delays go to Due at once. Above the horizon there is no
// key, and ok is false. The service's name is not checked.
func Key(service string, delay time.Duration) (key string, ok bool) {
	if delay > Horizon {
		return "", false
	}
	var units uint
	if delay > 0 {
		units = uint((delay + Unit - 1) / Unit)
	}
	b := make([]byte, 0, 2*Levels+len(service))
	for level := Levels - 1; level >= 0; level-- {
		b = append(b, '0'+byte(units>>level&1), '.')
	}
	return string(append(b, service...)), true
}
