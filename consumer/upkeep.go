package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/waker"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/topology"
)

// unknownDelay is when a task of a scene that this build does not know comes
// again, for a build that does.
const unknownDelay = 10 * time.Second

// unknownRate is how many of them come again a second, in one process.
const unknownRate = 100

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
		c.sayUnknown(scene, "no handler for the scene", len(ids), ids[0])
		for _, id := range ids {
			c.cfg.OnEvent(Event{Kind: EventUnknown, Task: id, Scene: scene})
		}
		if err := c.comeAgain(ctx, ids, c.unknownPace(len(ids))); err != nil {
			c.log.Warn("could not put tasks off; the scan wakes them", "scene", scene, "error", err)
		}
	}
}

// sayUnknown says, once a minute and scene, that tasks wait for another build.
func (c *Consumer) sayUnknown(scene, missing string, tasks int, first int64) {
	if time.Since(c.unknownSaid[scene]) >= time.Minute {
		c.unknownSaid[scene] = time.Now()
		c.log.Error("this build has "+missing+": its tasks wait for a build that has", "scene", scene, "tasks", tasks, "first", first)
	}
}

// unknownPace spreads tasks of unknown scenes, so that many of them do not circle as fast as
// the broker can: unknownRate a second and process come again. Only the claimer calls it.
func (c *Consumer) unknownPace(n int) time.Duration {
	if now := time.Now(); c.unknownNext.Before(now) {
		c.unknownNext = now
	}
	c.unknownNext = c.unknownNext.Add(time.Duration(n) * time.Second / unknownRate)
	return min(max(c.unknownDelay, time.Until(c.unknownNext)), 10*time.Minute)
}

// release hands claims back whose handlers did not begin; they come again after d.
func (c *Consumer) release(ctx context.Context, claims []persistence.Claim, d time.Duration) {
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
	if err := c.comeAgain(ctx, ids, d); err != nil {
		c.log.Warn("could not wake released tasks; the scan does", "tasks", len(ids), "error", err)
	}
}

// undelivered is the waker's OnFail.
func (c *Consumer) undelivered(ctx context.Context, ids []int64, _ error) {
	for part := range slices.Chunk(ids, 1000) {
		if err := c.cfg.Store.Undelivered(ctx, part); err != nil {
			c.log.Warn("could not note undelivered wake-ups; their rows' dispatch times heal it", "tasks", len(ids), "error", err)
			return
		}
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
	confirmed, err := c.waker.Publish(ctx, out)
	var ae *amqp.Error
	if errors.Is(err, waker.ErrUnroutable) || errors.As(err, &ae) && ae.Code == amqp.NotFound {
		c.declareAgain(ctx, 0)
	}
	return confirmed, err
}

// declareEvery is how often the elected reaper's process makes the topology anew.
const declareEvery = time.Minute

// healTimeout bounds topology.Heal, which waits for confirms that do not come.
const healTimeout = 30 * time.Second

// declareAgain makes what somebody deleted under us, unless that was looked at less than
// every ago. A missing delay or due exchange ends no subscription, and what a delay queue holds
// for a missing one waits in silence. After each reconnect it looks at once, and also heals queues
// that the broker lost: that happens when a broker is killed, which ends connections.
//
// It uses the publishing connection, which a queue that cannot be subscribed to does not end.
// Only the reaper's goroutine calls it.
func (c *Consumer) declareAgain(ctx context.Context, every time.Duration) {
	session := c.publishConn.Live()
	if !c.cfg.Declare || session == nil || session.Blocked() != "" {
		return
	}
	anew := session.Generation != c.healed
	if !anew && time.Since(c.lastDeclared) < every {
		return
	}
	declaring, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.declare(declaring, session)
	if c.lastDeclared = time.Now(); err != nil {
		c.log.Warn("could not declare the topology again", "error", err)
		return
	}
	if !anew {
		return
	}
	healing, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	queues, err := topology.Heal(healing, func(ctx context.Context) (*amqp.Connection, error) { return amqpconn.Dial(ctx, c.connConfig("heal")) }, c.topology())
	if len(queues) > 0 {
		c.log.Error("the broker had lost queues, which were made anew; the scan sends their wake-ups again", "queues", queues)
		c.cfg.OnEvent(Event{Kind: EventHealed})
	}
	if err != nil {
		c.log.Warn("could not look for queues that the broker lost", "error", err)
		return
	}
	c.healed = session.Generation
}

// depth is the reaper's look at the backlog.
func (c *Consumer) depth(ctx context.Context) (int, error) {
	c.declareAgain(ctx, c.declareEvery)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	session, err := c.conn.Session(ctx)
	if err != nil {
		return 0, err
	}
	return topology.Depth(ctx, session.Connection, c.names.Ready())
}
