package publisher

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/waker"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

const (
	// wakeChunk is how many wake-ups go to the waker, or failed ids to the store, at
	// once.
	wakeChunk = 1000
	// repairTimeout bounds noting failed wake-ups in the store.
	repairTimeout = 5 * time.Second
)

// wakes publishes wake-ups behind the callers' backs. It owns the broker's
// connection, and with it all goroutines of a Publisher.
type wakes struct {
	store persistence.Store
	log   *slog.Logger
	conn  *amqpconn.Conn
	waker *waker.Waker
}

// newConn starts to connect. It checks the URL.
func newConn(cfg Config) (*amqpconn.Conn, error) {
	return amqpconn.New(amqpconn.Config{
		URL: cfg.AMQPURL, TLS: cfg.TLS, Logger: cfg.Logger,
		Name: "spillway publisher " + cfg.Service + " " + cfg.Name,
	})
}

func newWakes(cfg Config, conn *amqpconn.Conn) *wakes {
	w := &wakes{store: cfg.Store, log: cfg.Logger, conn: conn}
	w.waker = waker.New(waker.Config{
		Conn: conn, Service: cfg.Service, OnFail: w.failed, RepairTimeout: repairTimeout, Logger: cfg.Logger,
	})
	return w
}

// send queues wake-ups; it never waits.
func (w *wakes) send(list []waker.Wake) {
	// In pieces, so that a batch larger than the waker's room is not refused as
	// a whole.
	for piece := range slices.Chunk(list, wakeChunk) {
		w.waker.Enqueue(piece...)
	}
}

// failed notes that wake-ups may not have arrived. It runs on a goroutine of the
// waker. If the store is away too, the rows' own dispatch times heal them.
func (w *wakes) failed(ctx context.Context, ids []int64, reason error) {
	for piece := range slices.Chunk(ids, wakeChunk) {
		if err := w.store.Undelivered(ctx, piece); err != nil {
			w.log.Warn("cannot note undelivered wake-ups; the scan finds them by their age", "count", len(ids), "reason", reason, "error", err)
			return
		}
	}
}

// close flushes until ctx is over, and ends everything. On a silent broker both
// parts close the socket under what hangs, and what was pending is noted in the
// store, which has repairTimeout of its own.
func (w *wakes) close(ctx context.Context) error {
	return errors.Join(w.waker.Close(ctx), w.conn.Close(ctx))
}

// wakeInserted hands over the wake-ups of tasks that were created just now.
func (p *Publisher) wakeInserted(tasks []persistence.NewTask, in []persistence.Inserted) {
	// Read after the commit, so later than the row's times: not early.
	now := time.Now()
	list := make([]waker.Wake, 0, len(in))
	for i, r := range in {
		if r.Created && !r.Far && r.Status == retry.StatusWait {
			list = append(list, waker.Wake{ID: r.ID, Scene: tasks[i].Scene, Due: now.Add(r.Delay)})
		}
	}
	p.wakes.send(list)
}

// ConnectionState is a snapshot of a connection to the broker: Connected and Since (when it
// came or was lost), Address, Generation (connections so far), Reconnects, Blocked (the
// broker's reason for taking no messages) and BlockedSince, and of failed dials in a row
// Failures, LastError and Permanent (a setting looks wrong).
type ConnectionState = amqpconn.State

// Connection returns how the connection to the broker is. It may be called concurrently, and
// also after Close.
func (p *Publisher) Connection() ConnectionState { return p.wakes.conn.State() }

// Wake publishes the wake-ups of tasks that EnqueueTx stored, and is called after
// the caller's commit with the ids of its Results. It returns once they are
// queued. Ids of tasks that do not wait (not committed, or already done) are passed
// over. An error of the store means that the scan wakes the tasks.
func (p *Publisher) Wake(ctx context.Context, ids ...int64) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.leave()
	found, err := p.cfg.Store.Wakes(ctx, ids)
	if err != nil {
		return err
	}
	now := time.Now()
	// A task beyond the horizon keeps its time: the scan wakes it.
	near := slices.DeleteFunc(found, func(w persistence.Wake) bool { return w.In > topology.Horizon })
	list := make([]waker.Wake, len(near))
	for i, w := range near {
		list[i] = waker.Wake{ID: w.ID, Scene: w.Scene, Due: now.Add(w.In)}
	}
	// EnqueueTx left these rows to the next scan, since the commit was not its
	// own. From here on they are like those of Enqueue.
	if err := p.cfg.Store.Dispatched(ctx, near); err != nil {
		p.cfg.Logger.Warn("the scan will repeat wake-ups", "count", len(near), "error", err)
	}
	p.wakes.send(list)
	return nil
}
