package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// person acts on tasks now and then: mostly on those that wait for a person, sometimes on any. Its own way to Postgres has
// no proxy, but the server may be down.
type person struct {
	store *persistence.Postgres
	down  *downstream // which a person can look into
	rand  *rand.Rand  // of the goroutine that runs act

	mu   sync.Mutex
	done []persistence.Action // what the store said was done
}

func newPerson(dsn string, seed uint64, down *downstream) (*person, error) {
	store, err := openStore(dsn, operator, slog.New(slog.DiscardHandler))
	return &person{store: store, down: down, rand: rand.New(rand.NewPCG(seed, 3))}, err
}

// act acts until ctx is done.
func (p *person) act(ctx context.Context) {
	for n := 1; wait(ctx, 400*time.Millisecond); n++ {
		filter := persistence.Filter{Statuses: []retry.Status{retry.StatusManualReview, retry.StatusFailed}, Limit: 200}
		verb := persistence.Retry
		switch x := p.rand.IntN(100); {
		case x < 15:
			verb = persistence.Succeed
		case x < 20:
			verb = persistence.Fail
			filter.Statuses = filter.Statuses[:1]
		case x < 25: // under the consumers' hands
			verb = persistence.Cancel
			filter.Statuses = []retry.Status{retry.StatusExecuting, retry.StatusWait}
		case x < 30:
			filter.Statuses = []retry.Status{retry.StatusWait}
		case x < 33:
			verb = persistence.Succeed
			filter.Statuses = []retry.Status{retry.StatusExecuting, retry.StatusInit}
		}
		list, err := p.store.List(ctx, filter)
		if err != nil || len(list) == 0 {
			continue
		}
		t := list[p.rand.IntN(len(list))]
		if t.Status == retry.StatusWait && time.Until(t.NextAt) > time.Minute {
			continue // those are to wait to the end
		}
		a := persistence.Action{Verb: verb, ID: t.ID, Actor: operator, Note: fmt.Sprintf("action %d", n)}
		if s, _ := sceneOf(t.Scene); verb == persistence.Retry && s.books && p.rand.IntN(2) == 0 {
			a.Phase = retry.PhaseExecute
			if effected(p.down.calls(t.Scene, t.Key)) {
				a.Phase = retry.PhaseCallback
			}
		}
		if _, err := p.store.Operate(ctx, a); err == nil {
			p.mu.Lock()
			p.done = append(p.done, a)
			p.mu.Unlock()
		}
	}
}

func (p *person) actions() []persistence.Action {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]persistence.Action(nil), p.done...)
}
