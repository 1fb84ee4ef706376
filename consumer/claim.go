package consumer

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
)

const (
	// maxClaim bounds a claim's batch.
	maxClaim = 512
	// earlyGrace is how much too early a wake-up may be and still be sent again
	// for what remains: clocks of broker and database drift. A wake-up that is earlier still
	// is a stale one, and the right one is on its way.
	earlyGrace = 2 * time.Second
	// pendingBound is how many tasks of a scene at its bound wait here for a place. The rest
	// is put off, by up to half a minute: with too few in hand the scene would run dry meanwhile.
	pendingBound = 4096
	// maxSpill is the longest that it is put off, apart from the spread.
	maxSpill = 30 * time.Second
)

// claimer is what the claim loop holds in its hand. It belongs to that goroutine.
type claimer struct {
	c *Consumer
	// held are deliveries that found no free place, in order of arrival.
	held []delivery
	// pending are tasks of scenes at their own bound. Their messages are acknowledged:
	// should this process die, the scan wakes them.
	pending map[string]*pendingScene
}

type pendingScene struct {
	ids   []int64
	has   map[int64]bool
	spill time.Duration // how long the next tasks that do not fit are put off
}

// claimLoop is the claimer. It takes what has arrived, up to the free places,
// claims it in one statement, acknowledges once that is committed, and starts the
// handlers. A lone wake-up is claimed at once; batches grow only from what queued up
// meanwhile. After ctx is done it claims no more and hands back what it holds.
func (c *Consumer) claimLoop(ctx, work context.Context) {
	cl := &claimer{c: c, pending: map[string]*pendingScene{}}
	defer cl.handBack(work)
	for {
		batch, putOff, last := cl.gather()
		if len(batch) == 0 && len(putOff) == 0 && last == nil {
			arrived := c.arrived
			if len(cl.held) > 0 {
				arrived = nil // no place is free: more would only pile up
			}
			select {
			case <-ctx.Done():
				return
			case d := <-arrived:
				cl.held = append(cl.held, d)
			case <-c.slots.freed:
			}
			continue
		}
		if !cl.claim(ctx, work, batch, putOff, last) {
			return
		}
	}
}

// gather takes a batch: tasks that waited for their scene, then what has arrived. putOff
// are tasks that can wait nowhere here. last is the newest delivery that was taken.
func (cl *claimer) gather() (batch []delivery, putOff map[string][]int64, last *delivery) {
	c := cl.c
	for name, p := range cl.pending {
		for len(p.ids) > 0 && len(batch) < maxClaim {
			if ok, _ := c.slots.take(name, c.limit(name)); !ok {
				break
			}
			id := p.ids[0]
			p.ids = p.ids[1:]
			delete(p.has, id)
			batch = append(batch, delivery{id: id, scene: name})
		}
		if len(p.ids) == 0 {
			delete(cl.pending, name)
		}
	}
	for len(batch) < maxClaim {
		var d delivery
		if len(cl.held) > 0 {
			d = cl.held[0]
		} else {
			select {
			case d = <-c.arrived:
				cl.held = append(cl.held, d)
			default:
				return batch, putOff, last
			}
		}
		ok, full := c.slots.take(d.scene, c.limit(d.scene))
		if full {
			return batch, putOff, last
		}
		cl.held = cl.held[1:]
		last = &d
		if ok {
			batch = append(batch, d)
			continue
		}
		if wait := cl.park(d); !wait {
			if putOff == nil {
				putOff = map[string][]int64{}
			}
			putOff[d.scene] = append(putOff[d.scene], d.id)
		}
	}
	return batch, putOff, last
}

// limit is a scene's own bound; scenes that are not known get a place only for the
// length of a claim.
func (c *Consumer) limit(name string) int {
	if s := c.scenes[name]; s != nil {
		return s.scene.Concurrency
	}
	return 0
}

// park keeps a task until its scene has a place. false: too many wait already.
func (cl *claimer) park(d delivery) bool {
	p := cl.pending[d.scene]
	if p == nil {
		p = &pendingScene{has: map[int64]bool{}}
		cl.pending[d.scene] = p
	}
	if p.has[d.id] {
		return true // a second wake-up
	}
	if len(p.ids) >= cl.c.pendingBound {
		return false
	}
	p.ids, p.has[d.id] = append(p.ids, d.id), true
	return true
}

// claim claims a batch and starts its handlers. While Postgres is away it
// unsubscribes and tries again; the batch stays in hand, unacknowledged. false: ctx is
// done.
func (cl *claimer) claim(ctx, work context.Context, batch []delivery, putOff map[string][]int64, last *delivery) bool {
	c := cl.c
	ids := make([]int64, len(batch))
	for i, d := range batch {
		ids[i] = d.id
	}
	req := persistence.ClaimRequest{IDs: ids, Scenes: c.known, Token: uuid.NewString(), By: c.cfg.Name, Lease: c.cfg.Lease}
	var claimed []persistence.Claimed
	var began time.Time
	away := false
	err := backoff(ctx, func() (bool, error) {
		began = time.Now()
		call, cancel := c.patient(ctx, work)
		defer cancel()
		var err error
		claimed, err = c.cfg.Store.Claim(call, req)
		if err == nil {
			err = cl.putOff(call, putOff)
		}
		if err != nil && !away {
			away = true
			c.log.Warn("cannot claim, unsubscribed until postgres is back", "error", err, "tasks", len(ids))
			post(c.paused, true)
		}
		return err == nil, err
	})
	if err != nil {
		// Some may have been claimed without our hearing of it.
		var back []persistence.Claim
		for _, d := range batch {
			c.slots.give(d.scene)
			back = append(back, persistence.Claim{ID: d.id, Token: req.Token})
		}
		c.release(work, back, 0)
		return false
	}
	if away {
		c.log.Info("postgres is back, subscribing again")
		post(c.paused, false)
	}
	if last != nil && last.tag > 0 {
		post(c.acks, ack{last.tag, last.generation})
	}
	got := make(map[int64]*persistence.Claimed, len(claimed))
	for i := range claimed {
		got[claimed[i].ID] = &claimed[i]
	}
	stop := ctx.Err() != nil
	var back, foreign []persistence.Claim
	var missed []int64
	for _, d := range batch {
		t := got[d.id]
		delete(got, d.id) // a second wake-up in the batch finds nothing
		switch {
		case t == nil:
			c.slots.give(d.scene)
			missed = append(missed, d.id)
		case stop:
			c.slots.give(d.scene)
			back = append(back, persistence.Claim{ID: t.ID, Token: req.Token})
		case !c.scenes[t.Scene].has(t.Phase):
			c.slots.give(d.scene)
			foreign = append(foreign, persistence.Claim{ID: t.ID, Token: req.Token})
			c.sayUnknown(t.Scene, "no handler for the phase "+string(t.Phase)+" of the scene", 1, t.ID)
		default:
			c.begin(work, t, d.scene, began)
		}
	}
	c.release(work, back, 0)
	if len(foreign) > 0 {
		c.release(work, foreign, c.unknownPace(len(foreign)))
	}
	c.revisit(work, missed)
	return !stop
}

// patient is the context of a claim. It is not cut short by ctx at once: a claim whose answer
// we do not wait for would hold its tasks for a whole lease. An answer that takes longer than
// the lease is of no use; the claim is then made again with the same token.
func (c *Consumer) patient(ctx, work context.Context) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(work, c.cfg.Lease)
	stop := context.AfterFunc(ctx, func() {
		hurry := time.AfterFunc(callTimeout, cancel)
		context.AfterFunc(call, func() { hurry.Stop() })
	})
	return call, func() { stop(); cancel() }
}

// putOff has tasks of scenes at their bound come again later; the longer this goes on,
// the later.
func (cl *claimer) putOff(ctx context.Context, tasks map[string][]int64) error {
	for name, ids := range tasks {
		p := cl.pending[name]
		if p == nil {
			p = &pendingScene{has: map[int64]bool{}}
		}
		p.spill = min(max(2*p.spill, time.Second), cl.c.maxSpill)
		if err := cl.c.comeAgain(ctx, ids, p.spill); err != nil {
			return err
		}
		delete(tasks, name) // not again if the next scene's fails
	}
	return nil
}

// post puts v into a channel of capacity one, in the place of what was not taken yet: a newer
// ack includes the older, and only the newest pause counts. So the claimer never waits for the
// receiver, which may be waiting for a silent broker. Only one goroutine may post.
func post[T any](ch chan T, v T) {
	select {
	case <-ch:
	default:
	}
	ch <- v
}

// handBack has the tasks that waited for their scene woken elsewhere. What is
// held goes back with the channel.
func (cl *claimer) handBack(ctx context.Context) {
	var ids []int64
	for _, p := range cl.pending {
		ids = append(ids, p.ids...)
	}
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := cl.c.comeAgain(ctx, ids, 0); err != nil {
		cl.c.log.Warn("could not hand waiting tasks back; the scan wakes them", "tasks", len(ids), "error", err)
	}
}
