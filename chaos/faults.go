package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/topology"
)

// struck is a fault that was made.
type struck struct {
	fault
	Began, Healed time.Time
	Err           error // it could not be made
}

// injector makes the faults of a plan.
type injector struct {
	crew    *crew
	links   map[string]*link
	servers *servers
	lastID  func(context.Context) int64 // of a task, for wake-ups
	say     func(format string, args ...any)

	mu   sync.Mutex
	done []struck
}

// run makes the faults at their times and returns once all are healed. When ctx ends, those that wait are dropped and those
// under way are healed at once.
func (i *injector) run(ctx context.Context, plan []fault) {
	began := time.Now()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, f := range plan {
		if !wait(ctx, time.Until(began.Add(f.At))) {
			return
		}
		wg.Go(func() { // a fault lasts, others come meanwhile
			i.say("%s", f)
			s := struck{fault: f, Began: time.Now()}
			s.Healed, s.Err = i.inject(ctx, f)
			if s.Healed.IsZero() {
				s.Healed = time.Now()
			}
			if s.Err != nil {
				i.say("%7.3f s  %s: %v", time.Since(began).Seconds(), f.Kind, s.Err)
			}
			i.mu.Lock()
			defer i.mu.Unlock()
			i.done = append(i.done, s)
		})
	}
}

func (i *injector) struck() []struck {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]struck(nil), i.done...)
}

func (i *injector) inject(ctx context.Context, f fault) (healed time.Time, err error) {
	switch f.Kind {
	case killConsumer, killPublisher:
		i.crew.kill(f.Target)
		wait(ctx, f.Length)
		return healed, i.crew.start(f.Target)
	case pauseConsumer, pausePublisher:
		i.crew.signal(f.Target, syscall.SIGSTOP)
		wait(ctx, f.Length)
		i.crew.signal(f.Target, syscall.SIGCONT)
		return healed, nil
	case crashPostgres:
		return i.servers.crash(ctx, f.Length, "postgres", "--immediate")
	case crashBroker:
		return i.servers.crash(ctx, f.Length, "rabbitmq")
	case memoryAlarm:
		return i.servers.alarm(ctx, f.Length)
	case cutLink:
		return healed, i.links[f.Target].cut(ctx, 0)
	case refuseLink:
		return healed, i.links[f.Target].cut(ctx, f.Length)
	case freezeLink:
		return healed, i.links[f.Target].freeze(ctx, f.Length)
	case delayLink:
		return healed, i.links[f.Target].delay(ctx, f.Length)
	case loseReplies:
		return healed, i.links[f.Target].loseReplies(ctx, f.Length)
	case purgeQueue:
		return healed, i.servers.broker(func(ch *amqp.Channel) error {
			_, err := ch.QueuePurge(queueOf(f), false)
			return err
		})
	case deleteQueue:
		return healed, i.servers.broker(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queueOf(f), false, false, false)
			return err
		})
	case extraWakeups:
		return healed, i.extraWakeups(ctx, f)
	}
	return healed, fmt.Errorf("no such fault: %s", f.Kind)
}

// queueOf is the queue's full name; of the levels one is drawn whose delay the policies use.
func queueOf(f fault) string {
	names := topology.NamesOf(service)
	if f.Target == "level" {
		return names.Level(int(f.Seed % 6))
	}
	return names.Ready()
}

// extraWakeups puts wake-ups of any tasks straight into the ready queue: of those that wait they come too early, of the others
// once too often, and each comes twice, in no order.
func (i *injector) extraWakeups(ctx context.Context, f fault) error {
	return i.servers.broker(func(ch *amqp.Channel) error {
		last := i.lastID(ctx)
		if last == 0 {
			return errors.New("there are no tasks yet")
		}
		r := rand.New(rand.NewPCG(f.Seed, 2))
		list := scenes()
		var bodies []string
		for range 100 {
			// Mostly young ones, which are under way.
			id := max(1, last-r.Int64N(200))
			if r.IntN(4) == 0 {
				id = 1 + r.Int64N(last)
			}
			body := fmt.Sprintf(`{"id":%d,"scene":%q}`, id, list[r.IntN(len(list))].Name) // the message may be wrong about the scene
			bodies = append(bodies, body, body)
		}
		r.Shuffle(len(bodies), func(a, b int) { bodies[a], bodies[b] = bodies[b], bodies[a] })
		for _, body := range bodies {
			err := ch.PublishWithContext(ctx, "", topology.NamesOf(service).Ready(), false, false, amqp.Publishing{
				ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: []byte(body),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// counts says how often each kind struck.
func counts(done []struck) map[kind]int {
	out := map[kind]int{}
	for _, s := range done {
		if s.Err == nil {
			out[s.Kind]++
		}
	}
	return out
}

// missed lists the faults that could not be made.
func missed(done []struck) string {
	var out []string
	for _, s := range done {
		if s.Err != nil {
			out = append(out, string(s.Kind))
		}
	}
	return strings.Join(out, ", ")
}
