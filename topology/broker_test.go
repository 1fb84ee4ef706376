package topology_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// env returns a variable that says where a server is.
func env(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf(`%s is not set: run scripts/services up && eval "$(scripts/services env)"`, name)
	}
	return v
}

func dial(t testing.TB) *amqp.Connection {
	t.Helper()
	conn, err := amqp.DialConfig(env(t, "SPILLWAY_AMQP_URL"), amqp.Config{
		Heartbeat: 10 * time.Second,
		Dial:      amqp.DefaultDial(10 * time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) })
	return conn
}

func channel(t testing.TB, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ch.Close() })
	return ch
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newService names a service of the test's own and removes its topology after.
func newService(t testing.TB, conn *amqp.Connection, kind topology.QueueKind) topology.Config {
	t.Helper()
	cfg := topology.Config{Service: "topology-" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12], Kind: kind}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // t's context is over in a cleanup
		defer cancel()
		if err := topology.Delete(ctx, conn, cfg); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return cfg
}

// declared declares a topology of the test's own and removes it after.
func declared(t testing.TB, conn *amqp.Connection, kind topology.QueueKind) topology.Config {
	t.Helper()
	cfg := newService(t, conn, kind)
	start := time.Now()
	if err := topology.Declare(testContext(t), conn, cfg); err != nil {
		t.Fatal(err)
	}
	t.Logf("declared in %v", time.Since(start).Round(time.Millisecond))
	return cfg
}

func publish(t testing.TB, ch *amqp.Channel, exchange, key, body string) {
	t.Helper()
	err := ch.PublishWithContext(t.Context(), exchange, key, true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Body: []byte(body),
	})
	if err != nil {
		t.Fatal(err)
	}
}

// consume reads a queue with manual acks.
func consume(t testing.TB, conn *amqp.Connection, queue string) <-chan amqp.Delivery {
	t.Helper()
	ch := channel(t, conn)
	if err := ch.Qos(100, 0, false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return deliveries
}

func next(t testing.TB, deliveries <-chan amqp.Delivery, within time.Duration) amqp.Delivery {
	t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case d, ok := <-deliveries:
		if !ok {
			t.Fatal("the channel was closed")
		}
		return d
	case <-timer.C:
		t.Fatalf("no message within %v", within)
	}
	return amqp.Delivery{}
}

func kinds(t *testing.T, test func(t *testing.T, kind topology.QueueKind)) {
	for _, kind := range []topology.QueueKind{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) { test(t, kind) })
	}
}

func TestDelaysOnTheBroker(t *testing.T) {
	kinds(t, func(t *testing.T, kind topology.QueueKind) {
		conn := dial(t)
		cfg := declared(t, conn, kind)
		start := time.Now()
		if err := topology.Declare(testContext(t), conn, cfg); err != nil {
			t.Fatalf("declare again: %v", err)
		}
		t.Logf("declared again in %v", time.Since(start).Round(time.Millisecond))

		ready := consume(t, conn, cfg.Names().Ready())
		ch := channel(t, conn)
		sent := map[string]time.Time{}
		delays := []time.Duration{0, 100, 200, 300, 500, 700, 1000, 1500, 1900, 2000, 3100}
		for _, ms := range delays {
			delay := ms * time.Millisecond
			key, _ := topology.Key(cfg.Service, delay)
			sent[delay.String()] = time.Now()
			publish(t, ch, cfg.Names().Delay(), key, delay.String())
		}
		for range delays {
			d := next(t, ready, 20*time.Second)
			delay, err := time.ParseDuration(string(d.Body))
			if err != nil {
				t.Fatal(err)
			}
			late := time.Since(sent[string(d.Body)]) - delay
			if late < -time.Millisecond {
				t.Errorf("%v came %v early", delay, -late)
			}
			t.Logf("%v came %v late, %d hops", delay, late.Round(100*time.Microsecond), strings.Count(d.RoutingKey[:2*topology.Levels], "1"))
			if err := d.Ack(false); err != nil {
				t.Error(err)
			}
		}
	})
}

// What no binding matches at due stays visible, and what is rejected in ready
// is parked. Also for a message that was put into a level by hand: it must not
// block the level.
func TestNothingVanishes(t *testing.T) {
	kinds(t, func(t *testing.T, kind topology.QueueKind) {
		conn := dial(t)
		cfg := declared(t, conn, kind)
		names := cfg.Names()
		ch := channel(t, conn)

		unrouted := consume(t, conn, names.Unrouted())
		publish(t, ch, names.Due(), "no.service", "lost at due")
		publish(t, ch, "", names.Level(0), "lost after level 0")
		got := map[string]bool{}
		for range 2 {
			d := next(t, unrouted, 20*time.Second)
			got[string(d.Body)] = true
			_ = d.Ack(false)
		}
		if !got["lost at due"] || !got["lost after level 0"] {
			t.Errorf("unrouted: %v", got)
		}
		key, _ := topology.Key(cfg.Service, 100*time.Millisecond)
		publish(t, ch, names.Delay(), key, "after it")
		d := next(t, consume(t, conn, names.Ready()), 20*time.Second)
		if string(d.Body) != "after it" {
			t.Errorf("ready: %s", d.Body)
		}
		if err := d.Reject(false); err != nil {
			t.Fatal(err)
		}
		publish(t, ch, names.Submit(), "any.key", "a task")
		d = next(t, consume(t, conn, names.Submit()), 20*time.Second)
		if err := d.Reject(false); err != nil {
			t.Fatal(err)
		}
		parked := consume(t, conn, names.Parked())
		got = map[string]bool{}
		for range 2 {
			d := next(t, parked, 20*time.Second)
			got[string(d.Body)] = true
			_ = d.Ack(false)
		}
		if !got["after it"] || !got["a task"] {
			t.Errorf("parked: %v", got)
		}
	})
}

// The mandatory flag works at the delayed exchange.
func TestUnroutableKeysAreReturned(t *testing.T) {
	conn := dial(t)
	cfg := declared(t, conn, topology.Classic)
	ch := channel(t, conn)
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	key, _ := topology.Key("another", time.Second)
	publish(t, ch, cfg.Names().Delay(), key, "strange")
	select {
	case r := <-returns:
		if string(r.Body) != "strange" || r.ReplyCode != amqp.NoRoute {
			t.Errorf("%+v", r)
		}
	case <-testContext(t).Done():
		t.Error("not returned")
	}
}

func TestDepth(t *testing.T) {
	conn := dial(t)
	cfg := declared(t, conn, topology.Classic)
	ctx := testContext(t)
	names := cfg.Names()
	ch := channel(t, conn)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		confirm, err := ch.PublishWithDeferredConfirm(names.Submit(), "", true, false, amqp.Publishing{Body: fmt.Append(nil, i)})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := confirm.WaitContext(ctx); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if n, err := topology.Depth(ctx, conn, names.Submit()); n != 3 || err != nil {
		t.Errorf("depth %d, %v", n, err)
	}
}

// Several processes of a service start at the same moment.
func TestDeclareAtOnce(t *testing.T) {
	kinds(t, func(t *testing.T, kind topology.QueueKind) {
		conn := dial(t)
		cfg := newService(t, conn, kind)
		ctx := testContext(t)
		var wg sync.WaitGroup
		for range 4 {
			own := dial(t)
			wg.Go(func() {
				if err := topology.Declare(ctx, own, cfg); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		expect(t, verify(t, conn, env(t, "SPILLWAY_MANAGEMENT_URL"), cfg))
	})
}

// Who looks into a queue takes messages and puts them back. That must not wear them out.
func TestLookingLosesNothing(t *testing.T) {
	conn := dial(t)
	cfg := declared(t, conn, topology.Quorum)
	for _, queue := range []string{cfg.Names().Parked(), cfg.Names().Unrouted()} {
		ch := channel(t, conn)
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{Body: []byte("keep me")})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := confirm.WaitContext(testContext(t)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		for i := range 60 {
			look := channel(t, conn)
			wait(t, fmt.Sprintf("look %d into %s", i, queue), func() bool {
				_, ok, err := look.Get(queue, false)
				if err != nil {
					t.Fatal(err)
				}
				return ok
			})
			if err := look.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
