package waker

import (
	"context"
	"time"
)

// sayAgain is how often failures are logged at most, as long as they go on.
const sayAgain = 5 * time.Second

// repairLoop is the repairer. After Close it works off what is left.
func (w *Waker) repairLoop() {
	var said time.Time
	unsaid := 0
	for {
		closing := false
		select {
		case <-w.repair:
		case <-w.ctx.Done():
			closing = true
			w.drained()
		}
		w.mu.Lock()
		ids := make([]int64, 0, len(w.failed))
		for id := range w.failed {
			ids = append(ids, id)
		}
		clear(w.failed)
		reason := w.reason
		if closing && len(ids) == 0 {
			w.repaired = true
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		if len(ids) == 0 {
			continue
		}
		if unsaid += len(ids); time.Since(said) >= sayAgain || closing {
			w.log.Warn("wake-ups were not delivered; the scan will send them", "count", unsaid, "reason", reason)
			said, unsaid = time.Now(), 0
		}
		ctx, cancel := context.WithTimeout(context.Background(), w.cfg.RepairTimeout)
		w.cfg.OnFail(ctx, ids, reason)
		cancel()
	}
}

// drained waits until nothing is pending; after Close that needs no broker.
func (w *Waker) drained() {
	w.mu.Lock()
	pending, idle := w.pending, w.idle
	w.mu.Unlock()
	if pending > 0 {
		<-idle
	}
}
