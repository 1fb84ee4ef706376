package publisher

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// record is one call of Record, from its row on.
type record struct {
	claim    persistence.Claim
	scene    *scene
	version  int           // of the scene's rules
	began    time.Time     // just before the row was stored
	deadline time.Duration // of the task, from then on; zero: none
	failed   tries
	ctx      context.Context
	cancel   context.CancelCauseFunc
	expiry   *time.Timer // cancels when the lease is over and was not renewed
}

// held renews the leases of all records. Its goroutine runs while there are any.
type held struct {
	store persistence.Store
	lease time.Duration
	log   *slog.Logger
	beats sync.WaitGroup

	mu      sync.Mutex
	records map[*record]struct{}
	stop    context.CancelFunc // of the goroutine; set while there are records
}

func (h *held) add(r *record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records[r] = struct{}{}
	if len(h.records) == 1 {
		var ctx context.Context
		ctx, h.stop = context.WithCancel(context.Background())
		h.beats.Go(func() { h.heartbeat(ctx) })
	}
}

func (h *held) remove(r *record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.expiry.Stop() // under the lock, so that no renewal starts it again
	r.cancel(nil)
	if delete(h.records, r); len(h.records) == 0 {
		h.stop()
	}
}

// heartbeat renews in one statement, every third of a lease.
func (h *held) heartbeat(ctx context.Context) {
	tick := time.NewTicker(h.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.renew(ctx)
		}
	}
}

func (h *held) renew(ctx context.Context) {
	h.mu.Lock()
	byClaim := make(map[persistence.Claim]*record, len(h.records))
	claims := make([]persistence.Claim, 0, len(h.records))
	for r := range h.records {
		byClaim[r.claim] = r
		claims = append(claims, r.claim)
	}
	h.mu.Unlock()
	asked := time.Now()
	renew, stop := context.WithTimeout(ctx, h.lease/3)
	defer stop()
	kept, err := h.store.Renew(renew, h.lease, claims)
	if err != nil {
		// Each record's own timer ends it when its lease is over.
		if ctx.Err() == nil {
			h.log.Warn("cannot renew leases", "tasks", len(claims), "error", err)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range kept {
		// One that was removed meanwhile has stopped its timer for good.
		if r := byClaim[c]; h.has(r) {
			r.expiry.Reset(h.lease - time.Since(asked))
		}
		delete(byClaim, c)
	}
	for _, r := range byClaim {
		// Lost, or its result was written just now; then nobody looks at the context.
		r.cancel(retry.ErrLostClaim)
	}
}

// has reports whether r still runs. h.mu is held.
func (h *held) has(r *record) bool {
	_, ok := h.records[r]
	return ok
}
