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
