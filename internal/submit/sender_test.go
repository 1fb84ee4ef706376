package submit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/internal/testenv"
)

const long = 30 * time.Second // what never takes that long

// sender returns a Sender to an exchange of the test's own, which leads nowhere yet, and the proxy
// that it goes through.
func sender(t *testing.T) (*submit.Sender, *amqp.Channel, string, *testenv.Proxy) {
	t.Helper()
	name := testenv.Service(t)
	ch, err := testenv.AMQP(t).Channel()
	if err != nil {
		t.Fatal(err)
	}
	declare(t, ch, name)
	t.Cleanup(func() { _ = ch.ExchangeDelete(name, false, false) })
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	conn, err := amqpconn.New(amqpconn.Config{URL: url + "?heartbeat=2", Name: name, Logger: testenv.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := submit.NewSender(submit.SenderConfig{Conn: conn, Exchange: name})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Close(ctx)
		if err := conn.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s, ch, name, proxy
}

func declare(t *testing.T, ch *amqp.Channel, name string) {
	t.Helper()
	if err := ch.ExchangeDeclare(name, "fanout", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
}

// bind gives the exchange a queue.
func bind(t *testing.T, ch *amqp.Channel, exchange string, args amqp.Table) string {
	t.Helper()
	q, err := ch.QueueDeclare("", false, false, true, false, args)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(q.Name, "", exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	return q.Name
}

func depth(t *testing.T, ch *amqp.Channel, queue string) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(queue, false, false, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

func message(id string) amqp.Publishing {
	return amqp.Publishing{MessageId: id, Body: []byte(id), DeliveryMode: amqp.Persistent}
}

func send(t *testing.T, s *submit.Sender, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	begin := time.Now()
	err := s.Send(ctx, message("x"))[0]
	if took := time.Since(begin); took > within+time.Second {
		t.Errorf("took %v of %v", took, within)
	}
	return err
}

func TestSend(t *testing.T) {
	t.Parallel()
	s, ch, name, _ := sender(t)
	q := bind(t, ch, name, nil)
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			var list []amqp.Publishing
			for i := range 50 {
				list = append(list, message(fmt.Sprintf("%d-%d", w, i)))
			}
			for i, err := range s.Send(t.Context(), list...) {
				if err != nil {
					t.Errorf("message %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if n := depth(t, ch, q); n != 1000 {
		t.Errorf("%d messages", n)
	}
	if n := len(s.Send(t.Context())); n != 0 {
		t.Errorf("%d errors of nothing", n)
	}
}

func TestUnroutable(t *testing.T) {
	t.Parallel()
	s, ch, name, _ := sender(t)
	if err := send(t, s, long); !errors.Is(err, submit.ErrUnroutable) {
		t.Errorf("without a queue: %v", err)
	}
	if err := ch.ExchangeDelete(name, false, false); err != nil {
		t.Fatal(err)
	}
	for i, err := range s.Send(t.Context(), message("a"), message("b"), message("c")) {
		if !errors.Is(err, submit.ErrUnroutable) {
			t.Errorf("message %d without an exchange: %v", i, err)
		}
	}
	declare(t, ch, name)
	q := bind(t, ch, name, nil)
	if err := send(t, s, long); err != nil || depth(t, ch, q) != 1 {
		t.Errorf("afterwards: %v", err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	s, ch, name, _ := sender(t)
	bind(t, ch, name, amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	if err := send(t, s, long); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := send(t, s, long); !errors.Is(err, submit.ErrNacked) {
			t.Errorf("into a full queue: %v", err)
		}
	}
}

func TestBrokerAway(t *testing.T) {
	t.Parallel()
	s, ch, name, proxy := sender(t)
	bind(t, ch, name, nil)
	proxy.Refuse()
	proxy.Cut()
	testenv.Eventually(t, long, func() bool { return proxy.Connections() == 0 }, "the connection is gone")
	begin := time.Now()
	for range 2 {
		if err := send(t, s, long); !errors.Is(err, submit.ErrUnavailable) && !errors.Is(err, submit.ErrUnconfirmed) {
			t.Errorf("got %v", err)
		}
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if err := send(t, s, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	proxy.Accept()
	testenv.Eventually(t, long, func() bool { return send(t, s, 5*time.Second) == nil }, "messages go out again")
}

func TestBrokerSilent(t *testing.T) {
	t.Parallel()
	for name, freeze := range map[string]func(*testenv.Proxy){"both ways": (*testenv.Proxy).Freeze, "replies": (*testenv.Proxy).FreezeReplies} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ch, name, proxy := sender(t)
			bind(t, ch, name, nil)
			if err := send(t, s, long); err != nil {
				t.Fatal(err)
			}
			freeze(proxy)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if err := send(t, s, 300*time.Millisecond); !errors.Is(err, submit.ErrUnconfirmed) && !errors.Is(err, submit.ErrUnavailable) {
						t.Errorf("got %v", err)
					}
				})
			}
			wg.Wait()
			// Long messages, until the socket takes no more.
			big := message("big")
			big.Body = make([]byte, 6<<20)
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				if err := s.Send(ctx, big)[0]; err == nil {
					t.Error("confirmed by a silent broker")
				}
				cancel()
			}
			proxy.Thaw()
			testenv.Eventually(t, long, func() bool { return send(t, s, 5*time.Second) == nil }, "messages go out again")
		})
	}
}

func TestConnectionCut(t *testing.T) {
	t.Parallel()
	s, ch, name, proxy := sender(t)
	q := bind(t, ch, name, nil)
	if err := send(t, s, long); err != nil {
		t.Fatal(err)
	}
	sent := 1
	for range 10 {
		cut := make(chan struct{})
		go func() { defer close(cut); proxy.Cut() }()
		for range 20 {
			if err := send(t, s, 5*time.Second); err == nil {
				sent++
			}
		}
		<-cut
	}
	testenv.Eventually(t, long, func() bool { return send(t, s, 5*time.Second) == nil }, "messages go out again")
	if n := depth(t, ch, q); n < sent+1 {
		t.Errorf("%d messages, but %d were confirmed", n, sent+1)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent %v", silent), func(t *testing.T) {
			t.Parallel()
			s, ch, name, proxy := sender(t)
			bind(t, ch, name, nil)
			if err := send(t, s, long); err != nil {
				t.Fatal(err)
			}
			if silent {
				proxy.Freeze()
			}
			errs := make(chan error, 10)
			for range cap(errs) {
				go func() { errs <- s.Send(t.Context(), amqp.Publishing{Body: make([]byte, 2<<20)})[0] }()
			}
			begin := time.Now()
			s.Close(t.Context())
			if took := time.Since(begin); took > 4*time.Second {
				t.Errorf("close took %v", took)
			}
			for range cap(errs) {
				err := testenv.Receive(t, long, "the end of a call", errs)
				if silent && err == nil || err != nil && !errors.Is(err, submit.ErrClosed) && !errors.Is(err, submit.ErrUnconfirmed) && !errors.Is(err, submit.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
			}
			if err := send(t, s, long); !errors.Is(err, submit.ErrClosed) && !errors.Is(err, submit.ErrUnavailable) {
				t.Errorf("after close: %v", err)
			}
			s.Close(t.Context())
		})
	}
}
