package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/internal/waker"
	"github.com/spillway-mq/spillway/reaper"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// ErrStopping is the cause of a handler's context that ends because the
// consumer stops.
var ErrStopping = errors.New("consumer is stopping")

const (
	// finishPatience is how long a stop waits for a Postgres that is away.
	finishPatience = 15 * time.Second
	// givenUpAfter is how long handlers may take to return once their contexts have
	// ended.
	givenUpAfter = 6 * time.Second
	// callTimeout bounds a call of the store that is not worth waiting for: the scan
	// heals what it would have done.
	callTimeout = 5 * time.Second
)

// ErrUnreachable says that a server did not answer within StartTimeout.
var ErrUnreachable = errors.New("server not reachable")

// Consumer runs tasks of one service.
type Consumer struct {
	cfg    Config
	log    *slog.Logger
	names  topology.Names
	grid   retry.Grid
	scenes map[string]*scene
	known  []string // names of scenes

	connsMu     sync.Mutex     // over the setting of conn and publishConn, which Connections may ask for
	declared    bool           // the topology, at the start; the receiver's from then on
	conn        *amqpconn.Conn // for consuming, and the reaper's look at the backlog
	publishConn *amqpconn.Conn // the waker's: a blocked publisher must not hold up acks
	waker       *waker.Waker
	parker      *submit.Sender // to the dead exchange, on publishConn

	arrived chan delivery // from the receiver to the claimer
	acks    chan ack      // from the claimer to the receiver; cap 1, a new one replaces the old (see post)
	paused  chan bool     // the claimer tells the receiver to unsubscribe, or subscribe again; as acks

	lastDeclared time.Time // the reaper's goroutine's, see declareAgain
	healed       int       // the generation of publishConn after whose start queues were healed; as lastDeclared
	unknownNext  time.Time // the claimer's, see unknownPace
	unknownSaid  map[string]time.Time
	unknownDelay time.Duration // these are constants that tests shorten
	patience     time.Duration
	declareEvery time.Duration
	pendingBound int
	maxSpill     time.Duration

	slots   *slots
	running *running
	results chan result    // from the handlers to the finisher
	senders sync.WaitGroup // runs whose result is not in results yet
}

// scene is a handler with what is kept about it.
type scene struct {
	Handler
	rules retry.Rules

	mu      sync.Mutex
	version int // of the rules; zero until saved
}

// has reports whether a task of the scene in that phase can go on here.
func (s *scene) has(p retry.Phase) bool { return s.steps.has(p, s.scene.Unknown) }

// New checks cfg and handlers and names everything that is wrong with them. It
// does not connect.
func New(cfg Config, handlers ...Handler) (*Consumer, error) {
	cfg = cfg.withDefaults()
	errs := []error{cfg.check()}
	if len(handlers) == 0 {
		errs = append(errs, retry.NewFieldError("handlers", "none", "at least one"))
	}
	c := &Consumer{cfg: cfg, log: cfg.Logger.With("service", cfg.Service), names: topology.NamesOf(cfg.Service), grid: topology.Grid(), scenes: map[string]*scene{}, unknownDelay: unknownDelay, patience: finishPatience,
		declareEvery: declareEvery, pendingBound: pendingBound, maxSpill: maxSpill, unknownSaid: map[string]time.Time{}}
	for _, h := range handlers {
		s := h.scene
		if err := s.Check(); err != nil {
			errs = append(errs, err)
			continue
		}
		switch asks := h.steps.query != nil; {
		case asks && s.Unknown != retry.UnknownAsk:
			errs = append(errs, fmt.Errorf("scene %q: %w", s.Name, retry.NewFieldError("unknown", string(s.Unknown), "ask where there is a Query handler")))
		case !asks && s.Unknown == retry.UnknownAsk:
			errs = append(errs, fmt.Errorf("scene %q: %w", s.Name, retry.NewFieldError("unknown", "ask", "review or repeat: a scene without a Query handler has nobody to ask")))
		}
		if h.steps.execute == nil {
			errs = append(errs, fmt.Errorf("scene %q: %w", s.Name, retry.NewFieldError("handler", "nil", "a function")))
		}
		if c.scenes[s.Name] != nil {
			errs = append(errs, retry.NewFieldError("scene", s.Name, "registered once"))
		}
		c.scenes[s.Name] = &scene{Handler: h, rules: s.Rules(c.grid)}
		c.known = append(c.known, s.Name)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	return c, nil
}

// Run consumes until ctx is done and everything is handed over: handlers get
// Config.Grace to end, what was claimed but not begun goes back, and what does not end in
// time is written down as of unknown outcome. It returns nil then. It returns an error if the
// schema does not fit (retry.ErrSchema), a server is not there within StartTimeout
// (ErrUnreachable), or the topology cannot be declared as it should be. A ctx that is
// done while the servers are waited for is a stop like any other. It may be called once.
//
// Goroutines: the receiver, the claimer and the submitter end when ctx is done; handlers when they
// return, or are given up after Grace; the heartbeat and the finisher after the
// last handler; the reaper when ctx is done. Run waits for all but given-up handlers.
func (c *Consumer) Run(ctx context.Context) error {
	var scans *reaper.Reaper
	if !c.cfg.NoReaper {
		var err error
		if scans, err = c.newReaper(); err != nil {
			return err
		}
	}
	if err := c.start(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			c.log.Info("stopped before it began", "error", err)
			return nil
		}
		return err
	}
	prefetch := 2 * c.cfg.Concurrency
	c.arrived, c.acks, c.paused = make(chan delivery, 2*prefetch), make(chan ack, 1), make(chan bool, 1)
	c.slots, c.running = newSlots(c.cfg.Concurrency), newRunning()
	c.results = make(chan result, c.cfg.Concurrency)

	// work outlives ctx: it ends when all is handed over.
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	var roles, upkeep sync.WaitGroup
	roles.Go(func() { c.receive(ctx, prefetch) })
	roles.Go(func() { c.claimLoop(ctx, work) })
	roles.Go(func() { c.submitLoop(ctx, work) })
	upkeep.Go(func() { c.heartbeat(work) })
	finished := make(chan struct{})
	go func() { defer close(finished); c.finishLoop(work) }()
	if scans != nil {
		roles.Go(func() { scans.Run(ctx) })
	}
	c.log.Info("consuming", "scenes", c.known, "concurrency", c.cfg.Concurrency, "name", c.cfg.Name)
	<-ctx.Done()
	grace := time.Now().Add(max(c.cfg.Grace, 0))
	c.log.Info("stopping: no more claims", "running", c.running.len())
	roles.Wait()
	c.stopHandlers(time.Until(grace))
	// Counts from before the last results are sent: a finisher that cannot write takes none.
	patience := time.AfterFunc(c.patience, func() {
		c.log.Error("results cannot be written, giving up: the leases run out and the outcomes are unknown", "tasks", c.running.len())
		endWork()
	})
	defer patience.Stop()
	c.giveUp()
	c.senders.Wait() // every run has sent, or was given up
	close(c.results)
	<-finished
	endWork()
	upkeep.Wait()
	if err := c.closeConns(); err != nil {
		// Nothing is lost by it: the scan sends the wake-ups that were under way.
		c.log.Warn("connections did not close in order", "error", err)
	}
	return nil
}

// start waits for both servers and checks what they hold.
func (c *Consumer) start(ctx context.Context) error {
	waitCtx := ctx
	if c.cfg.StartTimeout > 0 {
		var cancel context.CancelFunc
		waitCtx, cancel = context.WithTimeout(ctx, c.cfg.StartTimeout)
		defer cancel()
	}
	var said bool
	err := backoff(waitCtx, func() (bool, error) {
		err := c.cfg.Store.CheckSchema(waitCtx)
		if err == nil || errors.Is(err, retry.ErrSchema) {
			return true, err
		}
		if !said {
			c.log.Warn("waiting for postgres", "error", err)
			said = true
		}
		return false, err
	})
	if err != nil {
		if errors.Is(err, retry.ErrSchema) || ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("postgres: %w: %w", ErrUnreachable, err)
	}
	consume, err := c.connect("consume")
	if err != nil {
		return err
	}
	publish, err := c.connect("publish")
	if err != nil {
		return errors.Join(err, consume.Close(ctx))
	}
	c.connsMu.Lock()
	c.conn, c.publishConn = consume, publish
	c.connsMu.Unlock()
	c.waker = waker.New(waker.Config{Conn: publish, Service: c.cfg.Service, OnFail: c.undelivered, Logger: c.log})
	c.parker = submit.NewSender(submit.SenderConfig{Conn: publish, Exchange: c.names.Dead()})
	session, err := c.conn.Session(waitCtx)
	if err == nil && c.cfg.Declare {
		err = topology.Declare(waitCtx, session.Connection, c.topology())
		c.declared = err == nil
		if c.declared {
			c.lastDeclared = time.Now()
		}
		var mismatch *topology.MismatchError
		if err != nil && !errors.As(err, &mismatch) && waitCtx.Err() == nil {
			// Lost meanwhile: the receiver declares again.
			c.log.Warn("could not declare the topology yet", "error", err)
			err = nil
		}
	}
	if err == nil {
		return nil
	}
	closeErr := c.closeConns()
	if ctx.Err() == nil && waitCtx.Err() != nil {
		return errors.Join(fmt.Errorf("rabbitmq: %w: %w", ErrUnreachable, err), closeErr)
	}
	return errors.Join(err, closeErr)
}

func (c *Consumer) connect(purpose string) (*amqpconn.Conn, error) {
	return amqpconn.New(c.connConfig(purpose))
}

func (c *Consumer) connConfig(purpose string) amqpconn.Config {
	return amqpconn.Config{
		URL: c.cfg.AMQPURL, TLS: c.cfg.TLS, Name: "spillway " + c.cfg.Service + " " + purpose + " " + c.cfg.Name, Logger: c.log,
	}
}

// ConnectionState is a snapshot of a connection to the broker: Connected and Since (when it
// came or was lost), Address, Generation (connections so far), Reconnects, Blocked (the
// broker's reason for taking no messages) and BlockedSince, and of failed dials in a row
// Failures, LastError and Permanent (a setting looks wrong).
type ConnectionState = amqpconn.State

// Connections returns how the two connections to the broker are: the one that wake-ups are
// taken from and the one that they are published on. Zero before Run connects. It may be
// called concurrently.
func (c *Consumer) Connections() (consume, publish ConnectionState) {
	c.connsMu.Lock()
	defer c.connsMu.Unlock()
	if c.conn != nil {
		consume, publish = c.conn.State(), c.publishConn.State()
	}
	return consume, publish
}

func (c *Consumer) closeConns() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// The waker closes its channel, which a silent broker does not answer.
	stop := context.AfterFunc(ctx, func() {
		if s := c.publishConn.Live(); s != nil {
			s.Kill(errors.New("the broker does not answer"))
		}
	})
	defer stop()
	c.parker.Close(ctx)
	return errors.Join(c.waker.Close(ctx), c.publishConn.Close(ctx), c.conn.Close(ctx))
}

// backoff calls f until it says that it is done or ctx is, with pauses that
// double from 100 ms to 5 s. It returns f's last error.
func backoff(ctx context.Context, f func() (done bool, err error)) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		done, err := f()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// policy returns the version of the scene's rules, which is saved on first use.
func (c *Consumer) policy(ctx context.Context, s *scene) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version == 0 {
		v, err := c.cfg.Store.SavePolicy(ctx, s.scene.Name, s.rules)
		if err != nil {
			return 0, err
		}
		s.version = v
	}
	return s.version, nil
}

func (c *Consumer) newReaper() (*reaper.Reaper, error) {
	var scenes []retry.Scene
	for _, s := range c.scenes {
		scenes = append(scenes, s.scene)
	}
	return reaper.New(reaper.Config{
		Store: c.cfg.Store, Scenes: scenes, Grid: c.grid, Name: c.cfg.Name, Publish: c.publish, Depth: c.depth,
		Interval: c.cfg.ScanInterval, Settle: 5*time.Second + c.cfg.Lease/3, Retention: c.cfg.Retention, OnScan: c.cfg.OnScan, Logger: c.log,
	})
}
