package dlx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/dlx"
	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a service with a box, and a connection of the test's own.
type bench struct {
	t     *testing.T
	ch    *amqp.Channel
	names topology.Names
	box   *dlx.Box
}

func dial(t *testing.T) func(context.Context) (*amqp.Connection, error) {
	url := testenv.AMQPURL(t)
	return func(context.Context) (*amqp.Connection, error) {
		return amqp.DialConfig(url, amqp.Config{Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(10 * time.Second)})
	}
}

func newBench(t *testing.T, kind topology.QueueKind) *bench {
	t.Helper()
	service := testenv.Service(t)
	testenv.DeclareTopology(t, service, kind)
	ch, err := testenv.AMQP(t).Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, ch: ch, names: topology.NamesOf(service)}
	if b.box, err = dlx.New(dlx.Config{Service: service, Dial: dial(t)}); err != nil {
		t.Fatal(err)
	}
	return b
}

// publish publishes a message and waits for the confirm.
func (b *bench) publish(exchange, key string, p amqp.Publishing) {
	b.t.Helper()
	p.DeliveryMode = amqp.Persistent
	c, err := b.ch.PublishWithDeferredConfirmWithContext(b.t.Context(), exchange, key, true, false, p)
	if err != nil {
		b.t.Fatal(err)
	}
	if ok, err := c.WaitContext(b.t.Context()); !ok || err != nil {
		b.t.Fatalf("publish: %v %v", ok, err)
	}
}

// take removes the head of a queue.
func (b *bench) take(queue string) amqp.Delivery {
	b.t.Helper()
	var d amqp.Delivery
	testenv.Eventually(b.t, 20*time.Second, func() bool {
		var ok bool
		var err error
		if d, ok, err = b.ch.Get(queue, true); err != nil {
			b.t.Fatal(err)
		}
		return ok
	}, "a message in "+queue)
	return d
}

// reject dead-letters the head of a queue.
func (b *bench) reject(queue string) {
	b.t.Helper()
	testenv.Eventually(b.t, 20*time.Second, func() bool {
		d, ok, err := b.ch.Get(queue, false)
		if err != nil {
			b.t.Fatal(err)
		}
		if ok && d.Reject(false) != nil {
			b.t.Fatal("reject")
		}
		return ok
	}, "a message in "+queue)
}

// depth waits until a queue has n messages that nobody holds.
func (b *bench) depth(queue string, n int) {
	b.t.Helper()
	testenv.Eventually(b.t, 20*time.Second, func() bool {
		q, err := b.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			b.t.Fatal(err)
		}
		return q.Messages == n
	}, fmt.Sprintf("%d messages in %s", n, queue))
}

func (b *bench) look(place dlx.Place, f dlx.Filter) []*dlx.Message {
	b.t.Helper()
	var list []*dlx.Message
	if err := b.box.Look(b.t.Context(), place, f, func(m *dlx.Message) error {
		list = append(list, m)
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
	return list
}

func bodies(list []*dlx.Message) (out []string) {
	for _, m := range list {
		out = append(out, string(m.Body))
	}
	return out
}

func ids(list []*dlx.Message) (out []string) {
	for _, m := range list {
		out = append(out, m.ID)
	}
	return out
}

func kinds(t *testing.T, f func(*testing.T, *bench)) {
	for _, kind := range []topology.QueueKind{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f(t, newBench(t, kind))
		})
	}
}

// More looks than the delivery limit of RabbitMQ 4 (20) neither lose, reorder nor rename a message.
func TestLookingChangesNothing(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, b *bench) {
		var want []string
		for i := range 12 {
			want = append(want, fmt.Sprint(i/2)) // each twice: the same to the last bit
			b.publish(b.names.Dead(), "", amqp.Publishing{Body: []byte(want[i])})
		}
		b.depth(b.names.Parked(), 12)
		first := ids(b.look(dlx.Parked, dlx.Filter{}))
		if len(slices.Compact(slices.Sorted(slices.Values(first)))) != 12 || first[1] != first[0]+".2" {
			t.Fatalf("ids %v", first)
		}
		for range 12 {
			for _, limit := range []int{5, 0} { // what is held in part comes back in its place, too
				b.depth(b.names.Parked(), 12)
				n := 12
				if limit > 0 {
					n = limit
				}
				if got := b.look(dlx.Parked, dlx.Filter{Limit: limit}); !slices.Equal(bodies(got), want[:n]) || !slices.Equal(ids(got), first[:n]) {
					t.Fatalf("%v %v", bodies(got), ids(got))
				}
			}
		}
		b.depth(b.names.Parked(), 12)
		for _, w := range want {
			if got := b.take(b.names.Parked()); string(got.Body) != w {
				t.Fatalf("%s, want %s", got.Body, w)
			}
		}
	})
}

// Each goes to where it came from, with all that its publisher gave it and nothing of the broker's.
func TestReplayToOrigin(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, b *bench) {
		n := b.names
		body := []byte{0, 0xff, '\n'}
		mine := amqp.Publishing{
			MessageId: "m", CorrelationId: "c", ContentType: "x/y", ContentEncoding: "z", ReplyTo: "r", Type: "t", AppId: "a", Priority: 3,
			Timestamp: time.Unix(1_700_000_000, 0), Body: body, Headers: amqp.Table{"mine": int32(1), "deep": amqp.Table{"l": []any{"x", int64(2)}}},
		}
		b.publish("", n.Ready(), mine)
		b.reject(n.Ready())
		b.depth(n.Parked(), 1)
		b.publish(n.Submit(), "", mine)
		b.reject(n.Submit())
		b.depth(n.Parked(), 2)
		// All of one priority: quorum queues of RabbitMQ 4.3 deliver in the order of priorities.
		refused := amqp.Delivery{Priority: 3, Headers: amqp.Table{"spillway-scene": "mail.send"}, Body: []byte("{")}
		p, _ := submit.Park(&refused, errors.New("body: no JSON"), time.Now().Add(-time.Hour))
		b.publish(n.Dead(), "", p)
		b.depth(n.Parked(), 3)
		b.publish(n.Due(), "nobody's", amqp.Publishing{Priority: 3, Body: []byte("lost")})
		b.depth(n.Unrouted(), 1)

		parked := b.look(dlx.Parked, dlx.Filter{})
		for i, want := range []string{"rejected in " + n.Ready(), "rejected in " + n.Submit(), "body: no JSON"} {
			m := parked[i]
			if m.Reason != want || time.Since(m.Since) > 2*time.Hour || m.Since.IsZero() {
				t.Errorf("%+v, want reason %s", m, want)
			}
		}
		for name, f := range map[string]dlx.Filter{
			"scene": {Scene: "mail.send"}, "reason": {Reason: "no JSON"}, "age": {MinAge: 30 * time.Minute}, "id": {IDs: []string{parked[2].ID}},
		} {
			if got := ids(b.look(dlx.Parked, f)); len(got) != 1 || got[0] != parked[2].ID {
				t.Errorf("by %s: %v", name, got)
			}
			b.depth(n.Parked(), 3)
		}
		if got := ids(b.look(dlx.Parked, dlx.Filter{MessageID: "m", From: n.Submit()})); len(got) != 1 || got[0] != parked[1].ID {
			t.Errorf("by message id and queue: %v", got)
		}
		b.depth(n.Parked(), 3)
		for _, place := range dlx.Places() {
			if err := b.box.Replay(t.Context(), place, dlx.Replay{}, func(*dlx.Message, dlx.Target) {}); err != nil {
				t.Fatal(err)
			}
		}
		b.depth(n.Parked(), 0)
		b.depth(n.Unrouted(), 0)
		same := func(d amqp.Delivery) {
			t.Helper()
			delete(d.Headers, "x-delivery-count") // of this delivery
			if !bytes.Equal(d.Body, body) || d.MessageId != "m" || d.CorrelationId != "c" || d.ContentType != "x/y" || d.ContentEncoding != "z" || d.ReplyTo != "r" || d.Type != "t" ||
				d.AppId != "a" || d.Priority != 3 || !d.Timestamp.Equal(mine.Timestamp) || d.DeliveryMode != amqp.Persistent || fmt.Sprintf("%#v", d.Headers) != fmt.Sprintf("%#v", mine.Headers) {
				t.Errorf("%+v", d)
			}
		}
		same(b.take(n.Ready()))
		same(b.take(n.Submit()))
		if d := b.take(n.Submit()); string(d.Body) != "{" || d.Headers["spillway-scene"] != "mail.send" || d.Headers["spillway-reason"] != nil || d.Headers["spillway-parked-at"] != nil {
			t.Errorf("%+v", d)
		}
		if d := b.take(n.Ready()); string(d.Body) != "lost" {
			t.Errorf("%+v", d)
		}
	})
}

// What is not taken stays, with all behind it; what came back meanwhile is not replayed again.
func TestReplayKeepsWhatIsNotTaken(t *testing.T) {
	t.Parallel()
	b := newBench(t, topology.Quorum)
	for _, body := range []string{"a", "b", "c"} {
		b.publish(b.names.Dead(), "k", amqp.Publishing{Body: []byte(body)})
	}
	b.depth(b.names.Parked(), 3)
	full := testenv.Service(t)
	if _, err := b.ch.QueueDeclare(full, true, false, false, false, amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = b.ch.QueueDelete(full, false, false, false) })
	b.publish("", full, amqp.Publishing{Body: []byte("0")})
	for _, tt := range []struct {
		to   *dlx.Target
		want error
	}{
		{nil, dlx.ErrNoTarget},
		{&dlx.Target{RoutingKey: "no-such-queue"}, dlx.ErrUnroutable},
		{&dlx.Target{Exchange: "no-such-exchange"}, dlx.ErrUnroutable},
		{&dlx.Target{RoutingKey: full}, dlx.ErrUnconfirmed},
	} {
		err := b.box.Replay(t.Context(), dlx.Parked, dlx.Replay{To: tt.to}, func(m *dlx.Message, _ dlx.Target) { t.Errorf("%s was replayed", m.Body) })
		if !errors.Is(err, tt.want) {
			t.Errorf("%v, want %v", err, tt.want)
		}
		b.depth(b.names.Parked(), 3)
		if got := bodies(b.look(dlx.Parked, dlx.Filter{})); strings.Join(got, "") != "abc" {
			t.Fatalf("%v", got)
		}
		b.depth(b.names.Parked(), 3)
	}
	// Back to the same queue: each once, in order.
	var done []string
	if err := b.box.Replay(t.Context(), dlx.Parked, dlx.Replay{To: &dlx.Target{Exchange: b.names.Dead()}}, func(m *dlx.Message, _ dlx.Target) {
		done = append(done, string(m.Body))
	}); err != nil || strings.Join(done, "") != "abc" {
		t.Fatalf("%v %v", done, err)
	}
	b.depth(b.names.Parked(), 3)
	var dropped []string
	if err := b.box.Drop(t.Context(), dlx.Parked, dlx.Filter{Limit: 2}, func(m *dlx.Message) { dropped = append(dropped, string(m.Body)) }); err != nil {
		t.Fatal(err)
	}
	b.depth(b.names.Parked(), 1)
	if got := b.take(b.names.Parked()); string(got.Body) != "c" || strings.Join(dropped, "") != "ab" {
		t.Errorf("left %s, dropped %v", got.Body, dropped)
	}
}

// The copy arrives, and its confirm does not: the original stays.
func TestReplayEndsBeforeConfirm(t *testing.T) {
	t.Parallel()
	b := newBench(t, topology.Quorum)
	b.publish(b.names.Dead(), "", amqp.Publishing{Body: []byte("a")})
	b.depth(b.names.Parked(), 1)
	proxy, slow := testenv.ProxyURL(t, testenv.AMQPURL(t))
	ctx, crash := context.WithCancelCause(t.Context())
	defer crash(nil)
	direct, dials := dial(t), 0
	box, err := dlx.New(dlx.Config{Service: b.names.Service(), Dial: func(ctx context.Context) (*amqp.Connection, error) {
		if dials++; dials == 1 { // publishes
			return amqp.DialConfig(slow, amqp.Config{Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(10 * time.Second)})
		}
		c, err := direct(ctx)
		proxy.FreezeReplies()
		return c, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- box.Replay(ctx, dlx.Parked, dlx.Replay{To: &dlx.Target{RoutingKey: b.names.Submit()}}, func(*dlx.Message, dlx.Target) { t.Error("done") })
	}()
	b.depth(b.names.Submit(), 1)
	why := errors.New("crash")
	crash(why)
	if err := testenv.Receive(t, 20*time.Second, "the end", ended); !errors.Is(err, why) {
		t.Error(err)
	}
	b.depth(b.names.Parked(), 1)
	b.depth(b.names.Submit(), 1)
}

func TestReplayRate(t *testing.T) {
	t.Parallel()
	b := newBench(t, topology.Classic)
	for range 11 {
		b.publish(b.names.Dead(), "", amqp.Publishing{})
	}
	b.depth(b.names.Parked(), 11)
	start := time.Now()
	if err := b.box.Replay(t.Context(), dlx.Parked, dlx.Replay{Rate: 20, To: &dlx.Target{RoutingKey: b.names.Submit()}}, func(*dlx.Message, dlx.Target) {}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 450*time.Millisecond { // 10 gaps of 50 ms, one of which may begin early
		t.Errorf("11 messages at 20 a second in %v", took)
	}
	b.depth(b.names.Submit(), 11)
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	if _, err := dlx.New(dlx.Config{Service: "No"}); !errors.Is(err, retry.ErrInvalid) {
		t.Error(err)
	}
	if _, err := dlx.New(dlx.Config{Service: "a"}); !errors.Is(err, retry.ErrInvalid) || !strings.Contains(err.Error(), "dial") {
		t.Error(err)
	}
	box, err := dlx.New(dlx.Config{Service: testenv.Service(t), Dial: dial(t)})
	if err != nil {
		t.Fatal(err)
	}
	visit := func(*dlx.Message) error { return nil }
	for _, err := range []error{
		box.Look(t.Context(), "cellar", dlx.Filter{}, visit), box.Look(t.Context(), dlx.Parked, dlx.Filter{Limit: -1}, visit),
		box.Look(t.Context(), dlx.Parked, dlx.Filter{MinAge: -1}, visit), box.Replay(t.Context(), dlx.Parked, dlx.Replay{Rate: -1}, nil),
	} {
		if !errors.Is(err, retry.ErrInvalid) {
			t.Error(err)
		}
	}
	if err := box.Look(t.Context(), dlx.Parked, dlx.Filter{}, visit); !errors.Is(err, topology.ErrMissing) {
		t.Error(err)
	}
}
