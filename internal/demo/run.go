package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// Config of a demo.
type Config struct {
	Servers
	// Tasks to publish: half by Do, half by EnqueueMany.
	Tasks int
	// Limit bounds the time until every task must have ended.
	Limit time.Duration
	// Worker returns the command of a consumer process, which runs Work.
	Worker func(name, url string) *exec.Cmd
	// Out gets what a person reads.
	Out io.Writer
}

// fate is what became of a key in the publisher's hand.
type fate struct {
	scene     string
	local     bool  // it ended in the local tier, well
	permanent bool  // it ended in the local tier, with a permanent error
	id        int64 // its row, where it has one
}

// Run runs the demo and returns what it found. The error is of the demo itself.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(cfg.Out, format+"\n", args...) }
	store, err := prepare(ctx, cfg.Servers)
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	down, err := startDownstream()
	if err != nil {
		return nil, err
	}
	defer func() { _ = down.stop() }()
	say("downstream at %s: 503 for a while or for ever, 429 with Retry-After, resets after reading, 400, slow", down.url())

	began := time.Now()
	crew := &crew{}
	defer crew.stop()
	for _, name := range []string{"consumer-a", "consumer-b"} {
		if err := crew.start(cfg.Worker(name, down.url()), name); err != nil {
			return nil, err
		}
	}
	if err := crew.awaitSubscribed(ctx, 2); err != nil {
		return nil, err
	}
	say("two consumer processes: %s", crew.pids())

	p, err := publisher.New(publisher.Config{Service: Service, Store: store, AMQPURL: cfg.AMQPURL, Scenes: scenes(), Name: "demo publisher",
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	fates := newFates()
	published := make(chan error, 1)
	go func() { published <- publish(ctx, p, cfg.Tasks, down.url(), fates) }()

	err = watch(ctx, cfg, store, crew, published, say)
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err = errors.Join(err, p.Close(closeCtx)); err != nil {
		return nil, err
	}
	crew.stop()
	return report(ctx, store, cfg, down, crew, fates, time.Since(began))
}

// prepare makes the schema and the topology afresh. Both are the demo's own.
func prepare(ctx context.Context, servers Servers) (*persistence.Postgres, error) {
	store, err := openStore(servers)
	if err != nil {
		return nil, err
	}
	if _, err := store.DB().ExecContext(ctx, `DROP SCHEMA IF EXISTS `+Schema+` CASCADE`); err != nil {
		return nil, errors.Join(fmt.Errorf("remove the last demo's tables: %w", err), store.Close())
	}
	m, err := persistence.NewMigrator(servers.PostgresDSN, Schema, nil)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	_, err = m.Up(ctx)
	if err = errors.Join(err, m.Close()); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	conn, err := amqp.Dial(servers.AMQPURL)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach rabbitmq: %w", err), store.Close())
	}
	defer func() { _ = conn.Close() }()
	top := topology.Config{Service: Service}
	if err := errors.Join(topology.Delete(ctx, conn, top), topology.Declare(ctx, conn, top)); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return store, nil
}

// fates is shared by the publishing goroutines.
type fates struct {
	mu sync.Mutex
	by map[string]fate
}

func newFates() *fates { return &fates{by: map[string]fate{}} }

func (f *fates) set(key string, x fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by[key] = x
}

// publish hands n tasks over: even ones by Do from 16 goroutines, odd ones by
// EnqueueMany in batches.
func publish(ctx context.Context, p *publisher.Publisher, n int, url string, fates *fates) error {
	call := newCaller(url)
	defer call.client.CloseIdleConnections()
	numbers := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range 16 {
		wg.Go(func() {
			for i := range numbers {
				if err := do(ctx, p, call, i, fates); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	var batch []publisher.Task
	var err error
	flush := func() {
		res, e := p.EnqueueMany(ctx, batch)
		err = errors.Join(err, e)
		for i, r := range res {
			fates.set(batch[i].Key, fate{scene: batch[i].Scene, id: r.ID})
		}
		batch = batch[:0]
	}
	for i := range n {
		if i%2 == 0 {
			select {
			case numbers <- i:
			case <-ctx.Done():
			}
			continue
		}
		if batch = append(batch, task(i)); len(batch) == 125 {
			flush()
		}
	}
	close(numbers)
	if len(batch) > 0 {
		flush()
	}
	wg.Wait()
	return errors.Join(err, failed, ctx.Err())
}

func task(i int) publisher.Task {
	name := "payment.charge"
	if i%10 >= 8 {
		name = "stock.reserve"
	}
	key := fmt.Sprintf("order-%04d", i)
	return publisher.Task{Scene: name, Key: key, Args: charge{Order: key, Cents: 100 + i}}
}

func do(ctx context.Context, p *publisher.Publisher, call *caller, i int, fates *fates) error {
	t := task(i)
	s, err := scene(t.Scene)
	if err != nil {
		return err
	}
	try := 0
	err = p.Do(ctx, t, func(ctx context.Context) error {
		try++
		return call.call(ctx, s, t.Key, fmt.Sprintf("inline-%d", try), 0, t.Args.(charge))
	})
	f := fate{scene: t.Scene}
	var esc *retry.EscalatedError
	switch {
	case err == nil:
		f.local = true
	case errors.As(err, &esc):
		f.id = esc.TaskID
	case retry.MarkedClass(err) == retry.ClassPermanent:
		f.permanent = true
	default:
		return fmt.Errorf("task %s: %w", t.Key, err)
	}
	fates.set(t.Key, f)
	return nil
}

// watch prints progress, kills a consumer when a third of the work is done, and
// returns when every task has ended.
func watch(ctx context.Context, cfg Config, store *persistence.Postgres, crew *crew, published chan error, say func(string, ...any)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	began := time.Now()
	killed, all := false, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-published:
			if err != nil {
				return fmt.Errorf("publish: %w", err)
			}
			all = true
			say("%5.1f s  all %d tasks handed over", time.Since(began).Seconds(), cfg.Tasks)
			continue
		case err := <-crew.died():
			return err
		case <-tick.C:
		}
		counts, err := store.Count(ctx)
		if err != nil {
			return err
		}
		by := map[retry.Status]int64{}
		var open, rows int64
		for _, c := range counts {
			by[c.Status] += c.Tasks
			rows += c.Tasks
			if !c.Status.Terminal() && c.Status != retry.StatusManualReview {
				open += c.Tasks
			}
		}
		say("%5.1f s  %4d remembered: %4d waiting, %3d executing, %4d succeeded, %3d failed, %3d for a person", time.Since(began).Seconds(), rows,
			by[retry.StatusWait], by[retry.StatusExecuting], by[retry.StatusSuccess], by[retry.StatusFailed], by[retry.StatusManualReview])
		if !killed && by[retry.StatusExecuting] > 0 && rows-open >= int64(cfg.Tasks/6) {
			say("         SIGKILL for %s, in the middle of its work", crew.kill("consumer-a"))
			killed = true
		}
		if all && open == 0 {
			if !killed {
				return errors.New("no consumer could be killed midway: it all ended too soon")
			}
			return nil
		}
		if time.Since(began) > cfg.Limit {
			say("         not all ended within %v", cfg.Limit)
			return nil // the report says what is missing
		}
	}
}

// crew is the consumer processes.
type crew struct {
	mu         sync.Mutex
	members    map[string]*member
	subscribed int
	events     []said
	dead       chan error // a process that ended by itself
	changed    chan struct{}
}

type member struct {
	cmd     *exec.Cmd
	stderr  bytes.Buffer
	ended   chan struct{} // stdout read to its end, and waited for
	killed  bool
	stopped bool
}

func (c *crew) start(cmd *exec.Cmd, name string) error {
	if c.members == nil {
		c.members, c.dead, c.changed = map[string]*member{}, make(chan error, 8), make(chan struct{}, 1)
	}
	m := &member{cmd: cmd, ended: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = &m.stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	c.mu.Lock()
	c.members[name] = m
	c.mu.Unlock()
	go func() { // ends with the process
		defer close(m.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var s said
			if json.Unmarshal(lines.Bytes(), &s) == nil {
				c.note(s)
			}
		}
		err := cmd.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !m.killed && !m.stopped {
			c.dead <- fmt.Errorf("%s ended by itself (%w):\n%s", name, err, m.stderr.String())
		}
	}()
	return nil
}

func (c *crew) note(s said) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Kind == consumer.EventSubscribed {
		c.subscribed++
		select {
		case c.changed <- struct{}{}:
		default:
		}
		return
	}
	c.events = append(c.events, s)
}

func (c *crew) died() <-chan error { return c.dead }

func (c *crew) awaitSubscribed(ctx context.Context, n int) error {
	timeout := time.After(30 * time.Second)
	for {
		c.mu.Lock()
		ok := c.subscribed >= n
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.changed:
		case err := <-c.dead:
			return err
		case <-timeout:
			return errors.New("the consumers did not start within 30 s")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *crew) pids() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := ""
	for _, name := range []string{"consumer-a", "consumer-b"} {
		if m := c.members[name]; m != nil {
			s += fmt.Sprintf("%s (pid %d) ", name, m.cmd.Process.Pid)
		}
	}
	return s
}

func (c *crew) kill(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[name]
	m.killed = true
	_ = m.cmd.Process.Kill()
	return fmt.Sprintf("%s (pid %d)", name, m.cmd.Process.Pid)
}

// stop ends the processes in good order, and by force if they do not listen.
func (c *crew) stop() {
	c.mu.Lock()
	var left []*member
	for _, m := range c.members {
		if !m.stopped && !m.killed {
			m.stopped = true
			_ = m.cmd.Process.Signal(syscall.SIGTERM)
		}
		left = append(left, m)
	}
	c.mu.Unlock()
	for _, m := range left {
		select {
		case <-m.ended:
		case <-time.After(15 * time.Second):
			_ = m.cmd.Process.Kill()
			<-m.ended
		}
	}
}
