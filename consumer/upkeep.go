package consumer

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/spillway-mq/spillway/internal/waker"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/topology"
)

// unknownDelay is when a task of a scene that this build does not know comes
// again, for a build that does.
const unknownDelay = 10 * time.Second

// comeAgain has waiting tasks woken again after d, or when they are due if that
// is later.
func (c *Consumer) comeAgain(ctx context.Context, ids []int64, d time.Duration) error {
	wakes, err := c.cfg.Store.Redispatch(ctx, ids, d)
	if err != nil {
		return err
	}
	out := make([]waker.Wake, 0, len(wakes))
	for _, w := range wakes {
		in := max(w.In, d)
		if d > 0 {
			in += rand.N(d/4 + 1)
		}
		out = append(out, waker.Wake{ID: w.ID, Scene: w.Scene, Due: time.Now().Add(in)})
	}
	c.waker.Enqueue(out...)
	return nil
}

// revisit looks at tasks that were not claimed. Most are done or another's; a
// scene that is not known here waits for a build that knows it, and a wake-up that
// came a little early is sent again.
func (c *Consumer) revisit(ctx context.Context, ids []int64) {
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	wakes, err := c.cfg.Store.Wakes(ctx, ids)
	if err != nil {
		c.log.Warn("cannot look at tasks that were not claimed; the scan wakes them", "tasks", len(ids), "error", err)
		return
	}
	unknown := map[string][]int64{}
	for _, w := range wakes {
		switch {
		case w.In > earlyGrace: // a stale wake-up; the right one is on its way
		case c.scenes[w.Scene] == nil:
			unknown[w.Scene] = append(unknown[w.Scene], w.ID)
		default: // also where it came due since the claim
			c.waker.Enqueue(waker.Wake{ID: w.ID, Scene: w.Scene, Due: time.Now().Add(w.In)})
		}
	}
	for scene, ids := range unknown {
		c.log.Error("this build has no handler for the scene: its tasks wait for a build that has", "scene", scene, "tasks", len(ids), "first", ids[0])
		for _, id := range ids {
			c.cfg.OnEvent(Event{Kind: EventUnknown, Task: id, Scene: scene})
		}
		if err := c.comeAgain(ctx, ids, c.unknownDelay); err != nil {
			c.log.Warn("could not put tasks off; the scan wakes them", "scene", scene, "error", err)
		}
	}
}

// release hands claims back whose handlers did not begin.
func (c *Consumer) release(ctx context.Context, claims []persistence.Claim) {
	if len(claims) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ids, err := c.cfg.Store.Release(ctx, claims)
	if err != nil {
		c.log.Warn("could not hand claims back; their leases run out", "tasks", len(claims), "error", err)
		return
	}
	for _, id := range ids {
		c.cfg.OnEvent(Event{Kind: EventReleased, Task: id})
	}
	if err := c.comeAgain(ctx, ids, 0); err != nil {
		c.log.Warn("could not wake released tasks; the scan does", "tasks", len(ids), "error", err)
	}
}

// undelivered is the waker's OnFail.
func (c *Consumer) undelivered(ctx context.Context, ids []int64, _ error) {
	if err := c.cfg.Store.Undelivered(ctx, ids); err != nil {
		c.log.Warn("could not note undelivered wake-ups; their rows' dispatch times heal it", "tasks", len(ids), "error", err)
	}
}

// publish is the reaper's way to publish.
func (c *Consumer) publish(ctx context.Context, wakes []persistence.Wake) ([]bool, error) {
	now := time.Now()
	out := make([]waker.Wake, len(wakes))
	for i, w := range wakes {
		out[i] = waker.Wake{ID: w.ID, Scene: w.Scene, Due: now.Add(w.In)}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return c.waker.Publish(ctx, out)
}

// depth is the reaper's look at the backlog.
func (c *Consumer) depth(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	session, err := c.conn.Session(ctx)
	if err != nil {
		return 0, err
	}
	return topology.Depth(ctx, session.Connection, c.names.Ready())
}
