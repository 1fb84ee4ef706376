package publisher_test

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/topology"
)

// enqueue stores a task and does not take long.
func enqueue(t testing.TB, p *publisher.Publisher) int64 {
	t.Helper()
	var r publisher.Result
	prompt(t, "enqueue", func() {
		var err error
		if r, err = p.Enqueue(t.Context(), publisher.Task{Scene: "s"}); err != nil {
			t.Fatal(err)
		}
	})
	return r.ID
}

// noted waits until a scan would wake the tasks.
func noted(t testing.TB, store *persistence.Postgres, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		testenv.Eventually(t, 40*time.Second, func() bool { return undispatched(t, store, id) }, "the lost wake-up is noted in the row")
	}
}

// arrivesAgain waits until a new task's wake-up comes through.
func arrivesAgain(t testing.TB, p *publisher.Publisher, r *ready) {
	t.Helper()
	var ids []int64
	next := time.Now()
	testenv.Eventually(t, 40*time.Second, func() bool {
		for _, id := range ids {
			if _, ok := r.get(id); ok {
				return true
			}
		}
		if time.Now().After(next) {
			ids, next = append(ids, enqueue(t, p)), time.Now().Add(time.Second)
		}
		return false
	}, "wake-ups arrive again")
}

func TestExchangeDeleted(t *testing.T) {
	t.Parallel()
	var service string
	p, store, ready := connected(t, func(c *publisher.Config) { service = c.Service })
	ready.wait(t, enqueue(t, p))
	names := topology.NamesOf(service)
	ch, err := testenv.AMQP(t).Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.ExchangeDelete(names.Delay(), false, false); err != nil {
		t.Fatal(err)
	}
	lost := []int64{enqueue(t, p), enqueue(t, p)}
	noted(t, store, lost...)

	// An exchange without bindings: the messages come back as unroutable.
	if err := ch.ExchangeDeclare(names.Delay(), amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	unroutable := enqueue(t, p)
	noted(t, store, unroutable)

	testenv.DeclareTopology(t, service, topology.Classic)
	arrivesAgain(t, p, ready)
	// What the scan does.
	if err := p.Wake(t.Context(), append(lost, unroutable)...); err != nil {
		t.Fatal(err)
	}
	ready.wait(t, append(lost, unroutable)...)
}

func TestConnectionCut(t *testing.T) {
	t.Parallel()
	var proxy *testenv.Proxy
	p, store, ready := connected(t, func(c *publisher.Config) { proxy, c.AMQPURL = testenv.ProxyURL(t, c.AMQPURL) })
	ready.wait(t, enqueue(t, p))
	var ids []int64
	for range 20 {
		ids = append(ids, enqueue(t, p))
		proxy.Cut()
		ids = append(ids, enqueue(t, p), enqueue(t, p))
	}
	arrivesAgain(t, p, ready)
	// Each arrived, or is known not to have.
	for _, id := range ids {
		testenv.Eventually(t, 40*time.Second, func() bool {
			_, ok := ready.get(id)
			return ok || undispatched(t, store, id)
		}, "the wake-up arrives or is noted as lost")
	}
}

func TestBrokerAwayAtStart(t *testing.T) {
	t.Parallel()
	var proxy *testenv.Proxy
	p, store, ready := connected(t, func(c *publisher.Config) {
		proxy, c.AMQPURL = testenv.ProxyURL(t, c.AMQPURL)
		proxy.Refuse()
	})
	noted(t, store, enqueue(t, p), enqueue(t, p))
	proxy.Accept()
	arrivesAgain(t, p, ready)
}

func TestBrokerSilent(t *testing.T) {
	t.Parallel()
	var proxy *testenv.Proxy
	p, store, ready := connected(t, func(c *publisher.Config) { proxy, c.AMQPURL = testenv.ProxyURL(t, c.AMQPURL) })
	ready.wait(t, enqueue(t, p))
	proxy.Freeze()
	var ids []int64
	for range 50 {
		ids = append(ids, enqueue(t, p))
	}
	// The heartbeat ends the connection, which makes them lost.
	noted(t, store, ids...)
	proxy.Thaw()
	arrivesAgain(t, p, ready)
}

func TestCloseOnASilentBroker(t *testing.T) {
	t.Parallel()
	for name, pending := range map[string]int{"nothing pending": 0, "wake-ups pending": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var proxy *testenv.Proxy
			p, store, ready := connected(t, func(c *publisher.Config) { proxy, c.AMQPURL = testenv.ProxyURL(t, c.AMQPURL) })
			ready.wait(t, enqueue(t, p))
			proxy.Freeze()
			var ids []int64
			for range pending {
				ids = append(ids, enqueue(t, p))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			begin := time.Now()
			err := p.Close(ctx)
			if took := time.Since(begin); took > 4*time.Second {
				t.Errorf("close took %v", took)
			}
			if len(ids) > 0 && err == nil {
				t.Error("close says that all was flushed")
			}
			// Close noted them before it returned.
			for _, id := range ids {
				if !undispatched(t, store, id) {
					t.Fatalf("task %d counts as delivered", id)
				}
			}
		})
	}
}
