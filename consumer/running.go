package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// run is one claim, from its start until its result is written.
type run struct {
	task    *persistence.Claimed
	claim   persistence.Claim
	scene   *scene
	began   time.Time // just before the claim: Elapsed counts from here
	cancel  context.CancelCauseFunc
	expiry  *time.Timer           // cancels when the lease is over and was not renewed
	settled atomic.Bool           // somebody has sent, or will send, its result
	gone    atomic.Bool           // the store has said that the claim is another's
	at      atomic.Pointer[place] // where the row is
}

// place is how far a task's row has got.
type place struct {
	phase retry.Phase
	tries int // of Query or Callback in it
}

// renewed moves the end of the lease; asked is when the renewal was sent.
func (r *run) renewed(lease time.Duration, asked time.Time) {
	r.expiry.Reset(lease - time.Since(asked))
}

// running holds the runs of this process. The heartbeat reads it, handlers and
// the finisher write it.
type running struct {
	mu     sync.Mutex
	runs   map[*run]struct{}
	newest map[int64]*run // by task
}

func newRunning() *running { return &running{runs: map[*run]struct{}{}, newest: map[int64]*run{}} }

// add puts n in and returns the run of the same task that was there, or nil. That one has lost
// its claim. It stays in until its handler has returned: a stop has to wait for it.
func (r *running) add(n *run) *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.newest[n.claim.ID]
	r.runs[n], r.newest[n.claim.ID] = struct{}{}, n
	return old
}

func (r *running) remove(n *run) {
	n.expiry.Stop()
	n.cancel(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, n)
	if r.newest[n.claim.ID] == n {
		delete(r.newest, n.claim.ID)
	}
}

func (r *running) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.runs)
}

func (r *running) all() []*run {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*run, 0, len(r.runs))
	for n := range r.runs {
		out = append(out, n)
	}
	return out
}

// lost tells a run that its claim is another's.
func (r *run) lost() { r.cancel(retry.ErrLostClaim) }
