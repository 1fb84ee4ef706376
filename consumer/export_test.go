package consumer

import "time"

// Hurry shortens waits that a test has no time for. Zero leaves one as it is. It is to be called
// before Run.
func (c *Consumer) Hurry(unknown, patience time.Duration) {
	if unknown > 0 {
		c.unknownDelay = unknown
	}
	if patience > 0 {
		c.patience = patience
	}
}

// Shrink bounds what waits in hand for its scene, and how long the rest is put off. It is to be
// called before Run.
func (c *Consumer) Shrink(pending int, spill time.Duration) {
	c.pendingBound, c.maxSpill = pending, spill
}

// DeclareOften has the elected reaper look after the topology at every scan. It is to be
// called before Run.
func (c *Consumer) DeclareOften() { c.declareEvery = 0 }

// UnknownPace says when n more tasks of unknown scenes come again.
func (c *Consumer) UnknownPace(n int) time.Duration { return c.unknownPace(n) }
