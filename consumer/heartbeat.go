package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/spillway-mq/spillway/persistence"
)

// heartbeat renews the leases of all runs in one statement, every third of a
// lease, until work is done. Runs whose claim is gone are told.
func (c *Consumer) heartbeat(work context.Context) {
	tick := time.NewTicker(c.cfg.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-work.Done():
			return
		case <-tick.C:
		}
		runs := slices.DeleteFunc(c.running.all(), func(r *run) bool { return r.gone.Load() })
		if len(runs) == 0 {
			continue
		}
		claims := make([]persistence.Claim, len(runs))
		for i, r := range runs {
			claims[i] = r.claim
		}
		asked := time.Now()
		ctx, cancel := context.WithTimeout(work, c.cfg.Lease/3)
		kept, err := c.cfg.Store.Renew(ctx, c.cfg.Lease, claims)
		cancel()
		if err != nil {
			// Each run's own timer ends it when its lease is over.
			if work.Err() == nil {
				c.log.Warn("cannot renew leases", "tasks", len(claims), "error", err)
			}
			continue
		}
		ours := make(map[persistence.Claim]bool, len(kept))
		for _, k := range kept {
			ours[k] = true
		}
		for _, r := range runs {
			if ours[r.claim] {
				r.renewed(c.cfg.Lease, asked)
			} else if !r.settled.Load() && r.gone.CompareAndSwap(false, true) {
				c.log.Warn("claim lost while its handler runs", "task", r.claim.ID, "scene", r.task.Scene)
				r.lost()
			}
		}
	}
}
