package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/topology"
)

// servers breaks and mends Postgres and RabbitMQ. What strikes a server waits until the fault before is healed, so that each
// finds something to strike.
type servers struct {
	script  string // scripts/services
	amqpURL string
	mu      sync.Mutex
}

// settle is how long after its start the broker is spared. A queue that is deleted while its leader is being elected ends, on
// 3.10 as on 4.2, the broker's only supervisor of at-least-once dead-lettering, and from then on no quorum queue with it starts
// until the broker does: https://github.com/rabbitmq/rabbitmq-server/issues/16652.
const settle = 2 * time.Second

// do runs scripts/services. It goes on after ctx is done, so that no server stays down.
func (s *servers) do(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.script, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w\n%s", s.script, args, err, bytes.TrimSpace(out))
	}
	return nil
}

// crash kills a server as args say, and starts it again after d. healed is when it answered again.
func (s *servers) crash(ctx context.Context, d time.Duration, name string, args ...string) (healed time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.do(ctx, append([]string{"kill", name}, args...)...)
	wait(ctx, d)
	err = errors.Join(err, s.do(ctx, "start", name))
	healed = time.Now()
	if name == "rabbitmq" {
		wait(ctx, settle)
	}
	return healed, err
}

// alarm raises the memory alarm for d.
func (s *servers) alarm(ctx context.Context, d time.Duration) (healed time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.watermark(ctx, "0")
	wait(ctx, d)
	err = errors.Join(err, s.watermark(ctx, "0.4"))
	return time.Now(), err
}

func (s *servers) watermark(ctx context.Context, to string) error {
	return s.do(ctx, "ctl", "set_vm_memory_high_watermark", to)
}

// mend leaves both servers running and without an alarm.
func (s *servers) mend(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.do(ctx, "start", "postgres"), s.do(ctx, "start", "rabbitmq"), s.watermark(ctx, "0.4"))
}

// broken reports whether the broker cannot so much as look at a queue any more, see settle.
func (s *servers) broken() bool {
	err := s.broker(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(topology.NamesOf(service).Ready(), true, false, false, false, nil)
		return err
	})
	var ae *amqp.Error
	return errors.As(err, &ae) && ae.Code == amqp.InternalError
}

// broker runs f on a channel of its own, past the proxies.
func (s *servers) broker(f func(*amqp.Channel) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn, err := amqp.DialConfig(s.amqpURL, amqp.Config{Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}
