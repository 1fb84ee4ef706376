package waker

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/topology"
)

func TestWakeUpsArrive(t *testing.T) {
	service := testenv.Service(t)
	cfg := testenv.DeclareTopology(t, service, topology.Classic)
	w, failed := start(t, Config{Conn: connect(t, amqpconn.Config{}), Service: service, Window: 64})

	ok, err := w.Publish(within(t, long), wakes(1, 500))
	if count(ok) != 500 || err != nil {
		t.Fatalf("%d confirmed, %v", count(ok), err)
	}
	w.Enqueue(wakes(501, 499)...)
	w.Enqueue(Wake{ID: 1000, Scene: "scene.b", Due: time.Now().Add(300 * time.Millisecond)})
	w.Enqueue()
	if err := w.Flush(within(t, long)); err != nil {
		t.Fatal(err)
	}
	ch := channelOf(t)
	if err := ch.Qos(100, 0, false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume(cfg.Names().Ready(), "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for range 1000 {
		d := testenv.Receive(t, long, "a wake-up", deliveries)
		var body struct {
			ID    int64
			Scene string
		}
		if err := json.Unmarshal(d.Body, &body); err != nil {
			t.Fatalf("%s: %v", d.Body, err)
		}
		if seen[body.ID] || body.Scene != "scene.a" && body.ID != 1000 || d.DeliveryMode != amqp.Persistent {
			t.Errorf("%s, seen %v", d.Body, seen[body.ID])
		}
		seen[body.ID] = true
	}
	if failed.count() != 0 {
		t.Errorf("failed: %v", failed.times)
	}
	if ok, err := w.Publish(t.Context(), nil); ok != nil || err != nil {
		t.Error(ok, err)
	}
}

// What was recorded is on the grid; a moment later what is left of it must not take 14
// hops. And what the tiers cannot hold stays with the scan.
func TestDelays(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	all := queue(t, ch, exchange, "#", nil)
	w, _ := start(t, Config{Conn: connect(t, amqpconn.Config{}), Service: service})
	var list []Wake
	for i, d := range []time.Duration{-time.Hour, 0, time.Second, 60 * time.Second, 1000 * time.Second, 25 * time.Minute, 60 * 24 * time.Hour} {
		list = append(list, Wake{ID: int64(i), Scene: "a", Due: time.Now().Add(topology.Grid().Up(d) - 3*time.Millisecond)})
	}
	if ok, err := w.Publish(within(t, long), list); count(ok) != len(list) || err != nil {
		t.Fatal(ok, err)
	}
	if n := depth(t, ch, all); n != len(list)-1 {
		t.Errorf("%d messages, want all but the one beyond the horizon", n)
	}
	for range len(list) - 1 {
		d, _, err := ch.Get(all, true)
		if err != nil {
			t.Fatal(err)
		}
		if hops := strings.Count(d.RoutingKey[:2*topology.Levels], "1"); hops > topology.SignificantBits {
			t.Errorf("%s: %d hops", d.RoutingKey, hops)
		}
	}
}

// Half of the messages have nowhere to go, some ids are in the window twice, and
// everything is returned faster than the window moves on.
func TestUnroutable(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	now, _ := topology.Key(service, 0)
	taken := queue(t, ch, exchange, now, nil)
	w, failed := start(t, Config{Conn: connect(t, amqpconn.Config{}), Service: service, Window: 8})
	const n = 400
	list := wakes(0, n)
	for i := range list {
		if i%2 == 1 {
			list[i].Due = time.Now().Add(time.Hour / 4) // no queue for this key
			list[i].ID = int64(i / 4)                   // twice, and once more below
		}
	}
	ok, err := w.Publish(within(t, long), list)
	if !errors.Is(err, ErrUnroutable) || count(ok) != n/2 {
		t.Errorf("%d confirmed, %v", count(ok), err)
	}
	if got := depth(t, ch, taken); got != n/2 {
		t.Errorf("%d arrived", got)
	}
	if failed.count() != 0 {
		t.Error("failures of Publish went to OnFail")
	}
	for i := range list {
		list[i].ID, list[i].Due = int64(i), time.Now().Add(time.Hour/4)
	}
	w.Enqueue(list...)
	testenv.Eventually(t, long, func() bool { return failed.count() == n }, "all are reported")
	failed.once(t)
	if !errors.Is(failed.last(), ErrUnroutable) {
		t.Error(failed.last())
	}
}

func TestRefusedByTheQueue(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	queue(t, ch, exchange, "#", amqp.Table{"x-max-length": 10, "x-overflow": "reject-publish"})
	w, _ := start(t, Config{Conn: connect(t, amqpconn.Config{}), Service: service})
	ok, err := w.Publish(within(t, long), wakes(0, 100))
	if !errors.Is(err, ErrNacked) || count(ok) < 10 || count(ok) > 90 {
		t.Errorf("%d confirmed, %v", count(ok), err)
	}
	ok, err = w.Publish(within(t, long), wakes(0, 100))
	if !errors.Is(err, ErrNacked) || errors.Is(err, ErrUnconfirmed) || count(ok) != 0 {
		t.Errorf("full: %d confirmed, %v", count(ok), err)
	}
}

func TestExchangeDeleted(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	q := queue(t, ch, exchange, "#", nil)
	w, failed := start(t, Config{Conn: connect(t, amqpconn.Config{}), Service: service})
	works(t, w)
	if err := ch.ExchangeDelete(exchange, false, false); err != nil {
		t.Fatal(err)
	}
	ok, err := w.Publish(within(t, long), wakes(0, 5000))
	if count(ok) != 0 || err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
		t.Errorf("%d confirmed, %v", count(ok), err)
	}
	w.Enqueue(wakes(0, 5000)...)
	testenv.Eventually(t, long, func() bool { return failed.count() == 5000 }, "all are reported")
	failed.once(t)
	if !errors.Is(failed.last(), ErrUnroutable) && !errors.Is(failed.last(), ErrUnconfirmed) {
		t.Error(failed.last())
	}
	if err := ch.ExchangeDeclare(exchange, "topic", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(q, "#", exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	works(t, w)
	if took := time.Since(begin); took > 2*missingHold {
		t.Errorf("worked again after %v", took)
	}
}

// The library refuses to publish a moment before it says why; what is reported is the
// broker's reason all the same.
func TestTheReasonIsTheBrokers(t *testing.T) {
	conn := connect(t, amqpconn.Config{})
	for range 20 {
		w, _ := start(t, Config{Conn: conn, Service: testenv.Service(t)}) // nothing is declared
		const n = 300
		reasons := make(chan error, n)
		items := make([]item, n)
		for i, wk := range wakes(0, n) {
			items[i] = item{Wake: wk, settle: func(err error) { reasons <- err }}
		}
		w.add(items)
		for range n {
			if err := testenv.Receive(t, long, "a wake-up is settled", reasons); err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
				t.Fatal(err)
			}
		}
		closeWithin(t, w, long, long)
	}
	if st := conn.State(); st.Generation != 1 {
		t.Errorf("%+v", st)
	}
}

// The broker got a part of the window, its confirms are on their way, and the
// connection goes.
func TestCutMidWindow(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	q := queue(t, ch, exchange, "#", nil)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	w, _ := start(t, Config{Conn: connect(t, amqpconn.Config{URL: url}), Service: service, Window: 256})
	works(t, w)

	const n = 1000
	c := newTally()
	proxy.FreezeReplies()
	c.add(w, wakes(0, n))
	testenv.Eventually(t, long, func() bool { return depth(t, ch, q) >= 256 }, "a window is with the broker")
	if got := c.settled(); got > 1 {
		t.Errorf("%d settled without a confirm", got)
	}
	proxy.Cut()
	proxy.Thaw()
	testenv.Eventually(t, long, func() bool { return c.settled() >= n }, "all are settled")
	if err := w.Flush(within(t, long)); err != nil {
		t.Error(err)
	}
	c.once(t, n)
	if c.badly < 256 || c.well < 500 || c.reasons[ErrUnconfirmed.Error()] != c.badly {
		t.Error("what was not yet published should have gone out on the next connection, and only that")
	}
}

// Everybody at once, and the connection goes again and again.
func TestCutAgainAndAgain(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	q := queue(t, ch, exchange, "#", nil)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	conn := connect(t, amqpconn.Config{URL: url, MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond})
	w, failed := start(t, Config{Conn: conn, Service: service, Window: 32})
	works(t, w)
	var wg sync.WaitGroup
	c := newTally()
	const senders, rounds, each = 4, 50, 20
	for s := range senders {
		wg.Go(func() {
			for r := range rounds {
				first := int64(s*rounds+r) * each
				c.add(w, wakes(first, each))
				w.Enqueue(wakes(1<<20+first, each)...)
				if ok, err := w.Publish(within(t, long), wakes(1<<30+first, each)); (count(ok) == each) != (err == nil) {
					t.Errorf("%d confirmed, %v", count(ok), err)
				}
			}
		})
	}
	stop := make(chan struct{})
	cutter := make(chan struct{})
	go func() {
		defer close(cutter)
		for {
			pause := time.NewTimer(10*time.Millisecond + rand.N(40*time.Millisecond))
			select {
			case <-stop:
				return
			case <-pause.C:
				proxy.Cut()
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-cutter
	if err := w.Flush(within(t, long)); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d connections", proxy.Accepted())
	c.once(t, senders*rounds*each)
	// Confirmed is with the broker; each id once more at most per failure.
	if got := depth(t, ch, q); got < c.well {
		t.Errorf("%d messages, %d confirmed", got, c.well)
	}
	_ = failed
}

func TestClosedByTheBroker(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	queue(t, ch, exchange, "#", nil)
	conn := connect(t, amqpconn.Config{Name: service})
	w, _ := start(t, Config{Conn: conn, Service: service})
	works(t, w)
	before := conn.State().Generation
	testenv.Eventually(t, long, func() bool { return testenv.CloseConnections(t, service) == 1 }, "the management api closes it")
	testenv.Eventually(t, long, func() bool { return conn.State().Generation > before }, "it comes back")
	works(t, w)
}

// Confirms stay away while the connection lives: the window fails as one, not message
// by message.
func TestNoConfirms(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	queue(t, ch, exchange, "#", nil)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	conn := connect(t, amqpconn.Config{URL: url, Heartbeat: time.Minute})
	w, _ := start(t, Config{Conn: conn, Service: service, Window: 50, ConfirmTimeout: 200 * time.Millisecond, Patience: 200 * time.Millisecond})
	works(t, w)
	proxy.FreezeReplies()
	begin := time.Now()
	ok, err := w.Publish(within(t, long), wakes(0, 200))
	if count(ok) != 0 || !errors.Is(err, ErrUnconfirmed) && !errors.Is(err, ErrUnavailable) {
		t.Errorf("%d confirmed, %v", count(ok), err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	proxy.Thaw()
	works(t, w)
	if conn.State().Generation != 1 {
		t.Error("the connection was all right")
	}
}

// A broken network that says nothing. Nobody may hang.
func TestFreeze(t *testing.T) {
	for name, list := range map[string][]Wake{
		"sockets take it":     wakes(0, 5000),
		"a write hangs on it": wakes(0, 90_000),
	} {
		t.Run(name, func(t *testing.T) {
			service := testenv.Service(t)
			ch, exchange := bare(t, service)
			queue(t, ch, exchange, "#", amqp.Table{"x-max-length": 1})
			proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
			conn := connect(t, amqpconn.Config{URL: url, Heartbeat: time.Minute, WriteTimeout: time.Minute})
			w, failed := start(t, Config{Conn: conn, Service: service, Window: 95_000})
			works(t, w)
			proxy.Freeze()
			begin := time.Now()
			w.Enqueue(list...)
			if took := time.Since(begin); took > time.Second {
				t.Errorf("Enqueue took %v", took)
			}
			begin = time.Now()
			ok, err := w.Publish(within(t, 200*time.Millisecond), wakes(1<<20, 100))
			if count(ok) != 0 || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%d confirmed, %v", count(ok), err)
			}
			if took := time.Since(begin); took > time.Second {
				t.Errorf("Publish took %v", took)
			}
			if err := w.Flush(within(t, 2*time.Second)); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			closeWithin(t, w, 100*time.Millisecond, 4*time.Second)
			if n := failed.count(); n != len(list) {
				t.Errorf("%d reported, want %d", n, len(list))
			}
			failed.once(t)
		})
	}
}

func TestBrokerAway(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	queue(t, ch, exchange, "#", nil)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	proxy.Refuse()
	w, failed := start(t, Config{Conn: connect(t, amqpconn.Config{URL: url}), Service: service, Patience: 100 * time.Millisecond})
	w.Enqueue(wakes(0, 10)...)
	testenv.Eventually(t, 5*time.Second, func() bool { return failed.count() == 10 }, "all are reported")
	if !errors.Is(failed.last(), ErrUnavailable) || !strings.Contains(failed.last().Error(), "refused") {
		t.Error(failed.last())
	}
	proxy.Accept()
	works(t, w)
}

func TestPatience(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	queue(t, ch, exchange, "#", nil)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	conn := connect(t, amqpconn.Config{URL: url})
	w, _ := start(t, Config{Conn: conn, Service: service, Patience: long})
	works(t, w)
	proxy.Refuse()
	proxy.Cut()
	testenv.Eventually(t, long, func() bool { return conn.Live() == nil }, "the connection is gone")
	c := newTally()
	c.add(w, wakes(0, 100))
	proxy.Accept()
	if err := w.Flush(within(t, long)); err != nil {
		t.Fatal(err)
	}
	if c.once(t, 100); c.well != 100 {
		t.Error("a short outage should cost nothing")
	}
}

func TestFull(t *testing.T) {
	service := testenv.Service(t)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	proxy.Refuse()
	w, failed := start(t, Config{Conn: connect(t, amqpconn.Config{URL: url}), Service: service, Capacity: 10, Patience: long})
	w.Enqueue(wakes(0, 11)...)
	testenv.Eventually(t, 5*time.Second, func() bool { return failed.count() > 0 }, "it is reported")
	if !errors.Is(failed.last(), ErrFull) || failed.count() != 10 {
		t.Error(failed.count(), failed.last()) // the repairs are bounded, too
	}
	if ok, err := w.Publish(t.Context(), wakes(0, 11)); !errors.Is(err, ErrFull) || count(ok) != 0 {
		t.Error(ok, err)
	}
}

func TestClose(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	q := queue(t, ch, exchange, "#", nil)
	w, failed := start(t, Config{Conn: connect(t, amqpconn.Config{}), Service: service})
	w.Enqueue(wakes(0, 1000)...)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := w.Close(within(t, long)); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() { w.Enqueue(wakes(2000, 100)...) })
	}
	wg.Wait()
	if n := depth(t, ch, q); n < 1000 {
		t.Errorf("%d of 1000 went out", n)
	}
	t.Logf("%d came too late", failed.count())
	w.Enqueue(wakes(3000, 10)...)
	if ok, err := w.Publish(t.Context(), wakes(0, 2)); !errors.Is(err, ErrClosed) || count(ok) != 0 {
		t.Error(ok, err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Error(err)
	}
}

// A repair that hangs holds up neither publishing nor, beyond its time, Close.
func TestSlowRepair(t *testing.T) {
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	now, _ := topology.Key(service, 0)
	queue(t, ch, exchange, now, nil)
	called := make(chan struct{}, 10)
	w, _ := start(t, Config{
		Conn: connect(t, amqpconn.Config{}), Service: service, RepairTimeout: 300 * time.Millisecond,
		OnFail: func(ctx context.Context, _ []int64, _ error) { called <- struct{}{}; <-ctx.Done() },
	})
	w.Enqueue(Wake{ID: 1, Scene: "a", Due: time.Now().Add(time.Minute)})
	testenv.Receive(t, long, "OnFail is called", called)
	works(t, w)
	w.Enqueue(Wake{ID: 2, Scene: "a", Due: time.Now().Add(time.Minute)})
	closeWithin(t, w, 5*time.Second, 3*time.Second)
	testenv.Receive(t, long, "OnFail is called by Close", called)
}
