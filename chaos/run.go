package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/topology"
)

// config of a run.
type config struct {
	PostgresDSN     string
	AMQPURL         string
	Services        string // the script
	Seed            uint64
	Load            time.Duration
	Drain           time.Duration
	ExpectViolation bool
	Keep            bool
	Verbose         bool
	Out             io.Writer
}

// harness is a run under way.
type harness struct {
	cfg     config
	store   *persistence.Postgres // past the proxies
	down    *downstream
	crew    *crew
	inject  *injector
	servers *servers
	person  *person
	began   time.Time

	mu    sync.Mutex // also of cfg.Out
	said  map[string][]said
	found []violation
	seen  map[violation]bool
	alert chan struct{} // closed at the first violation
}

// run runs the pipeline under the faults of a seed. The error is errViolated for a verdict that is bad, else of the harness
// itself.
func run(ctx context.Context, cfg config) (err error) {
	h := &harness{cfg: cfg, said: map[string][]said{}, seen: map[violation]bool{}, alert: make(chan struct{}), began: time.Now()}
	logs, err := os.MkdirTemp("", "spillway-chaos-")
	if err != nil {
		return err
	}
	plan := newPlan(cfg.Seed, cfg.Load)
	if cfg.ExpectViolation {
		plan = onlyPauses(cfg.Seed, cfg.Load)
	}
	h.say("seed %d: %d faults in %v on %d consumers and %d publishers; logs in %s", cfg.Seed, len(plan), cfg.Load, consumers, publishers, logs)
	h.say("all times that decide are the database's, so the workers' clocks cannot be wrong: no fault for that")
	if cfg.Verbose {
		writePlan(cfg.Out, plan)
	}
	if err := h.prepare(ctx, logs); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if err := h.play(ctx, plan); err != nil {
		return fmt.Errorf("%w (seed %d; logs in %s)", err, cfg.Seed, logs)
	}
	r, err := h.verdict(ctx)
	if err != nil {
		return err
	}
	h.write(r)
	good := len(r.Violations) == 0
	if good && !cfg.Keep {
		err = os.RemoveAll(logs)
	}
	if good == cfg.ExpectViolation {
		return errors.Join(err, errViolated)
	}
	return err
}

func (h *harness) say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, _ = fmt.Fprintf(h.cfg.Out, format+"\n", args...)
}

// prepare makes everything afresh: both schemas, the topology, the proxies and the downstream.
func (h *harness) prepare(ctx context.Context, logs string) error {
	cfg := h.cfg
	h.servers = &servers{script: cfg.Services, amqpURL: cfg.AMQPURL}
	// Fails where the servers are not ours to kill.
	if err := h.servers.mend(ctx); err != nil {
		return err
	}
	var err error
	if h.store, err = openStore(cfg.PostgresDSN, "harness", slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if err := h.tables(ctx); err != nil {
		return err
	}
	conn, err := amqp.Dial(cfg.AMQPURL)
	if err != nil {
		return fmt.Errorf("reach rabbitmq: %w", err)
	}
	top := topology.Config{Service: service}
	err = errors.Join(topology.Delete(ctx, conn, top), topology.Declare(ctx, conn, top), conn.Close())
	if err != nil {
		return err
	}
	if h.down, err = startDownstream(cfg.Seed); err != nil {
		return err
	}
	if h.person, err = newPerson(cfg.PostgresDSN, cfg.Seed, h.down); err != nil {
		return err
	}
	upstream := map[string]string{"downstream": h.down.addr()}
	for peer, url := range map[string]string{"postgres": cfg.PostgresDSN, "rabbitmq": cfg.AMQPURL} {
		if upstream[peer], err = hostPort(url); err != nil {
			return err
		}
	}
	links, err := newLinks(upstream)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	h.crew = &crew{logs: logs, heard: h.heard, ended: h.endedByItself, command: func(slot, name string) *exec.Cmd {
		role, _, _ := strings.Cut(slot, "-")
		cmd := exec.Command(self, role, "--name", name, "--seed", fmt.Sprint(cfg.Seed), "--downstream", links[slot+"/downstream"].proxy.Listen)
		dsn, _ := links[slot+"/postgres"].through(cfg.PostgresDSN) // parsed before
		url, _ := links[slot+"/rabbitmq"].through(cfg.AMQPURL)
		cmd.Env = append(os.Environ(), "SPILLWAY_POSTGRES_DSN="+dsn, "SPILLWAY_AMQP_URL="+url)
		return cmd
	}}
	h.inject = &injector{crew: h.crew, links: links, servers: h.servers, lastID: h.lastID, say: func(format string, args ...any) {
		if cfg.Verbose {
			h.say(format, args...)
		}
	}}
	return nil
}

func (h *harness) tables(ctx context.Context) error {
	db := h.store.DB()
	if _, err := db.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`); err != nil {
		return fmt.Errorf("remove the last run's tables: %w", err)
	}
	m, err := persistence.NewMigrator(h.cfg.PostgresDSN, schema, nil)
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	if err = errors.Join(err, m.Close()); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, strings.NewReplacer("{audit}", auditSchema, "{schema}", schema).Replace(auditSQL)); err != nil {
		return fmt.Errorf("make the audit: %w", err)
	}
	return nil
}

// close stops what is left and mends the servers, whatever happened.
func (h *harness) close() error {
	h.crew.stop("", 15*time.Second)
	h.down.stop()
	return errors.Join(h.servers.mend(context.Background()), h.store.Close(), h.person.store.Close())
}

// play runs the load under the faults, and lets the tasks end.
func (h *harness) play(ctx context.Context, plan []fault) error {
	for _, slot := range slots() {
		if err := h.crew.start(slot); err != nil {
			return err
		}
	}
	select {
	case <-h.down.effected:
	case <-time.After(time.Minute):
		return errors.New("no task had an effect within a minute")
	case <-ctx.Done():
		return ctx.Err()
	}
	load, end := context.WithTimeout(ctx, h.cfg.Load)
	defer end()
	var roles sync.WaitGroup
	// All three end with load.
	roles.Go(func() { h.inject.run(load, plan) })
	roles.Go(func() { h.person.act(load) })
	roles.Go(func() { h.monitor(load) })
	if h.cfg.ExpectViolation {
		roles.Go(func() {
			select {
			case <-h.alert:
				end()
			case <-load.Done():
			}
		})
	}
	roles.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	h.say("%5.0f s  the faults are over, the publishers stop", time.Since(h.began).Seconds())
	if err := h.servers.mend(ctx); err != nil {
		return err
	}
	if h.servers.broken() {
		h.say("%5.0f s  the broker answers with internal errors, which only its restart ends: rabbitmq-server#16652", time.Since(h.began).Seconds())
		if err := h.servers.do(ctx, "restart", "rabbitmq"); err != nil {
			return err
		}
	}
	for _, slot := range slots() {
		if err := h.crew.start(slot); err != nil { // a publisher that was killed last may have something to say
			return err
		}
	}
	for _, wrong := range h.crew.stop(rolePublisher, 75*time.Second) {
		h.violate(violation{What: wrong})
	}
	return h.drain(ctx)
}

// drain waits until every task has ended, is a person's or waits for a time to come, and stops the consumers. A run that has
// the violation that it was made for does not wait.
func (h *harness) drain(ctx context.Context) error {
	began := time.Now()
	for time.Since(began) < h.cfg.Drain && !(h.cfg.ExpectViolation && len(h.violations()) > 0) {
		open, err := h.open(ctx)
		if err != nil {
			return err
		}
		if len(open) == 0 {
			h.say("%5.0f s  every task has ended, is a person's or waits for its time, %.1f s after the load", time.Since(h.began).Seconds(), time.Since(began).Seconds())
			break
		}
		if !wait(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
	for _, wrong := range h.crew.stop(roleConsumer, time.Minute) {
		h.violate(violation{What: wrong})
	}
	return ctx.Err()
}

// open returns the tasks that are under way or due soon.
func (h *harness) open(ctx context.Context) ([]int64, error) {
	var out []int64
	err := h.store.DB().SelectContext(ctx, &out, `SELECT id FROM `+schema+`.task WHERE status IN ('INIT', 'EXECUTING')
		OR status = 'WAIT' AND next_at < clock_timestamp() + interval '5 minutes' ORDER BY id`)
	return out, err
}

func (h *harness) lastID(ctx context.Context) int64 {
	var id int64
	_ = h.store.DB().GetContext(ctx, &id, `SELECT COALESCE(max(id), 0) FROM `+schema+`.task`) // zero where the server is down
	return id
}

// monitor checks the tasks that changed, every second.
func (h *harness) monitor(ctx context.Context) {
	last := int64(0)
	for wait(ctx, time.Second) {
		calls := h.down.all() // before the audit, which then has every claim that called
		ids, newest, err := touched(ctx, h.store.DB(), last)
		if err != nil {
			continue // the server is down
		}
		changes, err := readChanges(ctx, h.store.DB(), append(ids, 0)...) // 0: none, where there is none
		if err != nil {
			continue
		}
		last = newest
		for _, list := range changes {
			for _, v := range checkTask(history{list, calls[place(list[0].Scene, list[0].Key)]}) {
				h.violate(v)
			}
		}
	}
}

func (h *harness) violate(v violation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen[v] {
		return
	}
	h.seen[v] = true
	if h.found = append(h.found, v); len(h.found) == 1 {
		close(h.alert)
	}
	_, _ = fmt.Fprintf(h.cfg.Out, "%5.0f s  VIOLATION  %s\n", time.Since(h.began).Seconds(), v)
}

func (h *harness) violations() []violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]violation(nil), h.found...)
}

func (h *harness) heard(name string, s said) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said[name] = append(h.said[name], s)
}

func (h *harness) endedByItself(name string, err error) {
	h.violate(violation{What: fmt.Sprintf("the process %s ended by itself: %v", name, err)})
}
