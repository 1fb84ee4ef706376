package topology_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/topology"
)

// The broker lists a queue and has lost it, as after kill -9 right after it was declared.
func TestHeal(t *testing.T) {
	broker := testenv.NewServer(t, testenv.ServerConfig{})
	broker.Use(t)
	conn := dial(t)
	cfg := newService(t, conn, topology.Quorum)
	names := cfg.Names()
	if err := topology.Declare(testContext(t), conn, cfg); err != nil {
		t.Fatal(err)
	}
	heal := func() []string {
		t.Helper()
		queues, err := topology.Heal(t.Context(), dialer, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return queues
	}
	if got := heal(); len(got) > 0 {
		t.Fatalf("healed %v of a sound topology", got)
	}
	ch := confirming(t, conn)
	lose := func(queues ...string) {
		t.Helper()
		for _, q := range queues {
			broker.Ctl("eval", `ra:force_delete_server(quorum_queues, {list_to_atom("%2F_`+q+`"), node()}).`)
		}
	}
	lose(names.Level(10), names.Level(12))
	if got, want := heal(), []string{names.Level(10), names.Level(11), names.Level(12), names.Level(13)}; !slices.Equal(got, want) {
		t.Errorf("healed %v, want %v", got, want)
	}
	lose(names.Ready(), names.Level(2))
	if err := topology.Declare(t.Context(), conn, cfg); err != nil {
		t.Fatalf("declare sees it: %v", err) // then Heal is not needed
	}
	if taken(t, ch, "", names.Ready(), "refused") {
		t.Fatal("the queue takes messages: nothing was lost")
	}
	if got := heal(); len(got) != 1+topology.Levels {
		t.Errorf("healed %v, want ready, and all that hand on to it", got)
	}
	if got := heal(); len(got) > 0 {
		t.Errorf("healed %v again", got)
	}
	for _, d := range []time.Duration{0, topology.LevelTTL(0) + topology.LevelTTL(2)} {
		key, _ := topology.Key(cfg.Service, d)
		if !taken(t, ch, names.Delay(), key, d.String()) {
			t.Errorf("%v: not confirmed", d)
		}
	}
	arrive(t, conn, names.Ready(), "0s", "500ms")
	if d := messages(t, conn, names.Unrouted()); d > 0 {
		t.Errorf("%d messages found no way", d)
	}
}

// A full queue refuses messages as well, and what is in it must stay.
func TestHealLeavesAFullQueueAlone(t *testing.T) {
	broker := testenv.NewServer(t, testenv.ServerConfig{})
	broker.Use(t)
	conn := dial(t)
	cfg := newService(t, conn, topology.Quorum)
	if err := topology.Declare(testContext(t), conn, cfg); err != nil {
		t.Fatal(err)
	}
	broker.Ctl("set_policy", "full", "ready$", `{"max-length":1}`)
	ch := confirming(t, conn)
	testenv.Eventually(t, 20*time.Second, func() bool { return !taken(t, ch, "", cfg.Names().Ready(), "one") }, "the queue is full")
	if got, err := topology.Heal(t.Context(), dialer, cfg); err != nil || len(got) > 0 {
		t.Errorf("healed %v, %v", got, err)
	}
	arrive(t, conn, cfg.Names().Ready(), "one")
}

func confirming(t *testing.T, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch := channel(t, conn)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return ch
}

// taken reports whether a message was confirmed.
func taken(t *testing.T, ch *amqp.Channel, exchange, key, body string) bool {
	t.Helper()
	c, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
	if err != nil {
		t.Fatal(err)
	}
	ok, err := c.WaitContext(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// arrive waits until messages with these bodies have come.
func arrive(t *testing.T, conn *amqp.Connection, queue string, bodies ...string) {
	t.Helper()
	deliveries := consume(t, conn, queue)
	for len(bodies) > 0 {
		d := next(t, deliveries, 20*time.Second)
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		bodies = slices.DeleteFunc(bodies, func(b string) bool { return b == string(d.Body) })
	}
}

func messages(t *testing.T, conn *amqp.Connection, queue string) int {
	t.Helper()
	q, err := channel(t, conn).QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

func dialer(context.Context) (*amqp.Connection, error) {
	return amqp.Dial(os.Getenv("SPILLWAY_AMQP_URL"))
}
