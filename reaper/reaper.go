// Package reaper heals what no message will: claims whose lease ran out, wake-ups
// that were lost, tasks that come within the reach of the delay queues, and rows
// whose retention is over.
//
// Run is one goroutine; it ends with its context. A lease row elects one reaper per
// service, and each statement is safe even if two run.
package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// Defaults of a Config.
const (
	DefaultInterval  = 5 * time.Second
	DefaultRetention = 7 * 24 * time.Hour
	// Backlog is the depth of the ready queue from which on a scan takes late
	// tasks for waiting rather than lost, and wakes only Trickle of them.
	Backlog = 1000
	Trickle = 10

	page = 1000 // rows a statement

	// settleTime is how long after an outage of Postgres no claim is ended: none could be
	// renewed meanwhile, and the holders that live get the time to renew them, or to write
	// their results (a consumer tries every 5 s, and renews every third of a lease).
	settleTime = 10 * time.Second
)

// Config of a Reaper.
type Config struct {
	// Store of the service. Required.
	Store persistence.Store
	// Scenes that this build knows. Claims of other scenes are left for a build
	// that knows them.
	Scenes []retry.Scene
	// Grid is what the topology can express.
	Grid retry.Grid
	// Name of the holder of the lease. Required, unique per process.
	Name string
	// Publish publishes wake-ups and says which were confirmed. Required.
	Publish func(ctx context.Context, wakes []persistence.Wake) (confirmed []bool, err error)
	// Depth returns how many messages wait in the ready queue. Required.
	Depth func(ctx context.Context) (int, error)
	// Interval between scans. Zero: DefaultInterval.
	Interval time.Duration
	// Retention of terminal tasks. Zero: DefaultRetention; below zero: for ever.
	Retention time.Duration
	// Settle is how long after an outage of Postgres no claim is ended. Zero: 10 s. At least
	// a third of the lease, after which its holder renews it.
	Settle time.Duration
	// OnScan is told of every scan that this reaper made as the elected one. nil:
	// nobody is. It must not block.
	OnScan func(Scan)
	// Logger. nil: slog.Default.
	Logger *slog.Logger
}

// Scan is what one scan did.
type Scan struct {
	Epoch      int64 // of the lease
	Expired    int   // claims ended
	Dispatched int   // wake-ups published
	Backlog    int   // depth of the ready queue; -1 where it could not be read
	Removed    int   // rows whose retention was over
	Err        error // what went wrong; the rest was done
}

// Reaper scans for one service.
type Reaper struct {
	cfg      Config
	log      *slog.Logger
	rules    map[string]retry.Rules
	versions map[string]int
	scenes   []string
	settled  time.Time // claims are not ended before; moved by each outage of Postgres
}

// New returns a Reaper. The error names every wrong field.
func New(cfg Config) (*Reaper, error) {
	if cfg.Interval == 0 {
		cfg.Interval = DefaultInterval
	}
	if cfg.Retention == 0 {
		cfg.Retention = DefaultRetention
	}
	if cfg.Settle == 0 {
		cfg.Settle = settleTime
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	var errs []error
	if cfg.Store == nil || cfg.Publish == nil || cfg.Depth == nil || cfg.Name == "" {
		errs = append(errs, retry.NewFieldError("reaper", "missing", "given a store, a name, Publish and Depth"))
	}
	if cfg.Interval < 0 {
		errs = append(errs, retry.NewFieldError("scan interval", cfg.Interval, "above 0"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r := &Reaper{cfg: cfg, log: cfg.Logger, rules: map[string]retry.Rules{}, versions: map[string]int{}}
	for _, s := range cfg.Scenes {
		r.scenes = append(r.scenes, s.Name)
		r.rules[s.Name] = s.Rules(cfg.Grid)
	}
	return r, nil
}

// Run scans until ctx is done, and gives the lease up then.
func (r *Reaper) Run(ctx context.Context) {
	var failing bool
	for {
		scan, leads := r.Scan(ctx)
		switch {
		case ctx.Err() != nil:
		case scan.Err != nil && !failing:
			r.log.Warn("scan failed, trying again", "error", scan.Err)
		case scan.Err == nil && failing:
			r.log.Info("scans work again")
		}
		failing = scan.Err != nil
		if leads && r.cfg.OnScan != nil {
			r.cfg.OnScan(scan)
		}
		// Up to a tenth early, so that processes started together drift apart.
		select {
		case <-time.After(r.cfg.Interval - rand.N(r.cfg.Interval/10+1)):
		case <-ctx.Done():
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			if err := r.cfg.Store.Resign(end, r.cfg.Name); err != nil {
				r.log.Warn("could not give the reaper's lease up; it runs out", "error", err)
			}
			return
		}
	}
}

// Scan makes one scan, if this reaper holds or gets the lease.
func (r *Reaper) Scan(ctx context.Context) (s Scan, leads bool) {
	epoch, ok, err := r.cfg.Store.Lead(ctx, r.cfg.Name, max(3*r.cfg.Interval, 5*time.Second))
	if err != nil || !ok {
		if err != nil {
			r.settled = time.Now().Add(r.cfg.Settle)
		}
		return Scan{Err: err}, false
	}
	s.Epoch = epoch
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if !time.Now().Before(r.settled) {
		note(r.expire(ctx, &s))
	}
	note(r.dispatch(ctx, &s))
	note(r.sweep(ctx, &s))
	s.Err = errors.Join(errs...)
	return s, true
}

// expire decides about claims whose lease ran out: the outcome is unknown.
func (r *Reaper) expire(ctx context.Context, s *Scan) error {
	for after := int64(0); ; {
		expired, err := r.cfg.Store.Expired(ctx, r.scenes, after, page)
		if err != nil || len(expired) == 0 {
			return err
		}
		after = expired[len(expired)-1].ID
		results := make([]persistence.Result, 0, len(expired))
		for _, e := range expired {
			version, err := r.version(ctx, e.Scene)
			if err != nil {
				return err
			}
			results = append(results, r.result(e, version))
		}
		ids, err := r.cfg.Store.Expire(ctx, results)
		if err != nil {
			return err
		}
		s.Expired += len(ids)
		if len(ids) > 0 {
			r.log.Warn("claims ran out: their outcome is unknown", "tasks", len(ids), "first", ids[0])
		}
		wakes, err := r.cfg.Store.Wakes(ctx, ids)
		if err != nil {
			return err
		}
		if len(wakes) > 0 {
			// Should this fail, the rows' dispatch times heal it.
			if _, err := r.cfg.Publish(ctx, wakes); err != nil {
				return fmt.Errorf("wake expired tasks: %w", err)
			}
		}
		if len(expired) < page {
			return nil
		}
	}
}

func (r *Reaper) result(e persistence.Expired, version int) persistence.Result {
	uncharged := e.Uncharged + 1
	if e.Status == retry.StatusInit {
		uncharged = e.Uncharged // the inline run is attempt 0, which is charged to nobody
	}
	facts := retry.Facts{
		TaskID: e.ID, Attempt: e.Attempt, Uncharged: uncharged, Crashes: e.Crashes + 1, Crashed: true,
		Elapsed: e.Elapsed, Deadline: e.Deadline, Class: retry.ClassUnknown, Tries: e.Tries,
	}
	if e.Phase != retry.PhaseExecute {
		facts.Phase = e.Phase
	}
	d := retry.Decide(r.rules[e.Scene], facts)
	text := fmt.Sprintf("the lease of %s ran out during attempt %d", e.ClaimedBy, e.Attempt)
	out := persistence.Decided(e.Claim, facts, d, version, "reaper "+r.cfg.Name, text)
	out.Event.From = e.Status
	return out
}

func (r *Reaper) version(ctx context.Context, scene string) (int, error) {
	if v, ok := r.versions[scene]; ok {
		return v, nil
	}
	v, err := r.cfg.Store.SavePolicy(ctx, scene, r.rules[scene])
	if err == nil {
		r.versions[scene] = v
	}
	return v, err
}

// dispatch publishes the wake-ups of waiting tasks whose dispatch time has
// come: lost ones, and those that enter the horizon. The message goes first and the row
// is pushed out after the confirm, so that a crash in between repeats a wake-up rather
// than losing one.
func (r *Reaper) dispatch(ctx context.Context, s *Scan) error {
	for range 100 {
		depth, err := r.cfg.Depth(ctx)
		if err != nil {
			s.Backlog = -1
			return fmt.Errorf("read the backlog: %w", err)
		}
		s.Backlog = depth
		limit := page
		if depth >= Backlog {
			limit = Trickle
		}
		wakes, err := r.cfg.Store.Undispatched(ctx, limit)
		if err != nil || len(wakes) == 0 {
			return err
		}
		confirmed, perr := r.cfg.Publish(ctx, wakes)
		done := wakes[:0:0]
		for i, ok := range confirmed {
			if ok {
				done = append(done, wakes[i])
			}
		}
		if err := r.cfg.Store.Dispatched(ctx, done); err != nil {
			return err
		}
		s.Dispatched += len(done)
		if perr != nil {
			return fmt.Errorf("publish wake-ups: %w", perr)
		}
		if len(wakes) < page {
			return nil
		}
	}
	return nil
}

// sweep removes what retention is over for, in small batches.
func (r *Reaper) sweep(ctx context.Context, s *Scan) error {
	if r.cfg.Retention < 0 {
		return nil
	}
	for range 10 {
		n, err := r.cfg.Store.Sweep(ctx, r.cfg.Retention, page)
		s.Removed += n
		if err != nil || n < page {
			return err
		}
	}
	return nil
}
