package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// submit puts a message into the submit exchange, as any client would.
func (w *world) submit(p amqp.Publishing) {
	w.t.Helper()
	if err := w.amqp.PublishWithContext(context.Background(), w.names().Submit(), "any", true, false, p); err != nil {
		w.t.Fatal(err)
	}
}

// publisher returns one on other servers than the world's own.
func (w *world) publisher(store persistence.Store, url string) *publisher.Publisher {
	w.t.Helper()
	p, err := publisher.New(publisher.Config{
		Service: w.service, Store: store, AMQPURL: url, Logger: testenv.Logger(w.t), Name: "the publisher", RecordTimeout: 4 * time.Second,
		Scenes: []retry.Scene{local(fast("order", retry.UnknownRepeat)), local(fast("review", ""))},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			w.t.Errorf("close publisher: %v", err)
		}
	})
	return p
}

// local has no local tier.
func local(s retry.Scene) retry.Scene {
	s.Local = retry.Local{Retries: -1}
	return s
}

// tasks are all tasks of the service.
func (w *world) tasks() []retry.Task {
	w.t.Helper()
	list, err := w.store.List(context.Background(), persistence.Filter{Limit: 10_000})
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// awaitTasks waits until there are n tasks and all have a status.
func (w *world) awaitTasks(n int, want retry.Status) []retry.Task {
	w.t.Helper()
	var list []retry.Task
	testenv.Eventually(w.t, 30*time.Second, func() bool {
		list = w.tasks()
		for _, task := range list {
			if task.Status != want {
				return false
			}
		}
		return len(list) >= n
	}, fmt.Sprintf("%d tasks %s", n, want))
	if len(list) != n {
		w.t.Errorf("%d tasks, want %d", len(list), n)
	}
	return list
}

// settled waits until every message of the submit queue is acknowledged.
func (w *world) settled(stop func() error) {
	w.t.Helper()
	w.awaitQueue(w.names().Submit(), 0)
	if err := stop(); err != nil {
		w.t.Fatal(err)
	}
	if n, _ := w.queue(w.names().Submit()); n != 0 {
		w.t.Errorf("%d messages came back", n)
	}
}

// tally counts runs by key.
type tally struct {
	mu   sync.Mutex
	runs map[string]int
}

func (c *tally) handler(s retry.Scene) consumer.Handler {
	c.runs = map[string]int{}
	return consumer.Handle(s, func(_ context.Context, j *consumer.Job[order]) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.runs[j.Task.Key]++
		return nil
	})
}

func (c *tally) once(t *testing.T, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.runs) != n {
		t.Errorf("%d tasks ran, want %d", len(c.runs), n)
	}
	for key, runs := range c.runs {
		if runs != 1 {
			t.Errorf("%s ran %d times", key, runs)
		}
	}
}

func TestSubmittedWhilePostgresWasAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		kind       topology.QueueKind
		away, back func(*testenv.Proxy)
	}{
		{"gone", topology.Quorum, func(p *testenv.Proxy) { p.Refuse(); p.Cut() }, (*testenv.Proxy).Accept},
		{"frozen", topology.Classic, (*testenv.Proxy).Freeze, (*testenv.Proxy).Thaw},
		{"replies frozen", topology.Classic, (*testenv.Proxy).FreezeReplies, (*testenv.Proxy).Thaw},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.kind)
			proxy, store := w.through()
			var runs tally
			cfg := w.config()
			cfg.Store, cfg.Kind = store, c.kind
			stop := w.start(cfg, runs.handler(fast("order", retry.UnknownRepeat)))
			w.awaitEvents(consumer.EventSubscribed, 1)
			p := w.publisher(store, testenv.AMQPURL(t))
			r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "order", Key: "first", Args: order{1}})
			if err != nil || r.Submitted {
				t.Fatalf("%+v, %v", r, err)
			}
			w.await(r.ID, retry.StatusSuccess)
			c.away(proxy)
			n := 1
			for i := range 3 {
				r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "order", Key: fmt.Sprint("one ", i), Args: order{1}})
				if err != nil || !r.Submitted {
					t.Fatalf("%+v, %v", r, err)
				}
				n++
			}
			var many []publisher.Task
			for i := range 200 {
				many = append(many, publisher.Task{Scene: "order", Key: fmt.Sprint("many ", i), Args: order{1}})
			}
			if rs, err := p.EnqueueMany(t.Context(), many); err != nil || !rs[199].Submitted {
				t.Fatal(err)
			}
			n += len(many)
			boom := errors.New("boom")
			var esc *retry.EscalatedError
			err = p.Do(t.Context(), publisher.Task{Scene: "order", Key: "do", Args: order{1}}, func(context.Context) error { return boom })
			if !errors.As(err, &esc) || esc.Status != retry.StatusWait || !errors.Is(err, boom) {
				t.Fatal(err)
			}
			n++
			c.back(proxy)
			list := w.awaitTasks(n, retry.StatusSuccess)
			w.settled(stop)
			runs.once(t, n)
			for _, task := range list {
				if task.Key != "do" {
					continue
				}
				events, err := w.store.Events(t.Context(), task.ID)
				if err != nil || len(events) != 1 || events[0].Attempt != 0 || events[0].Actor != "the publisher" || events[0].Error != "boom" ||
					events[0].PolicyVersion == 0 || *events[0].Decision != retry.Decide(fast("order", retry.UnknownRepeat).Rules(topology.Grid()), *events[0].Facts) {
					t.Errorf("journal: %+v, %v", events, err)
				}
			}
		})
	}
}

// The row of a task whose answer was lost is met again by its message.
func TestSubmittedAfterALostAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs tally
	stop := w.start(w.config(), runs.handler(fast("order", retry.UnknownRepeat)))
	proxy, store := w.through()
	p := w.publisher(store, testenv.AMQPURL(t))
	if _, err := p.Enqueue(t.Context(), publisher.Task{Scene: "order", Args: order{1}}); err != nil {
		t.Fatal(err)
	}
	proxy.FreezeReplies()
	r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "order", Args: order{1}})
	if err != nil || !r.Submitted || r.ID == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	w.awaitEvents(consumer.EventSubmitted, 1)
	w.await(r.ID, retry.StatusSuccess)
	w.settled(stop)
	w.awaitTasks(2, retry.StatusSuccess)
	runs.once(t, 2)
	proxy.Thaw()
}

// The connection ends between the commit and the ack.
func TestSubmittedMessageComesAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range []topology.QueueKind{topology.Classic, topology.Quorum} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind)
			proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
			cfg := w.config()
			cfg.AMQPURL, cfg.Kind, cfg.NoReaper = url, kind, true
			var once sync.Once
			cfg.OnEvent = func(e consumer.Event) {
				if e.Kind == consumer.EventSubmitted {
					once.Do(func() { proxy.Refuse(); proxy.Cut() })
				}
				w.note(e)
			}
			scene := fast("order", retry.UnknownRepeat)
			scene.ReuseKey = true
			var runs tally
			stop := w.start(cfg, runs.handler(scene))
			msg := submit.Message{MessageID: "m1", Scene: "order", Key: "k", Args: []byte(`{"N":1}`), ContentType: submit.ContentJSON}
			w.submit(submit.Encode(msg))
			w.awaitEvents(consumer.EventSubmitted, 1)
			// The task ends before its message is there again, so the key could be taken over.
			first := w.awaitTasks(1, retry.StatusWait)[0].ID
			if _, err := w.store.Operate(t.Context(), persistence.Action{Verb: persistence.Succeed, ID: first, Actor: "ann"}); err != nil {
				t.Fatal(err)
			}
			w.awaitQueue(w.names().Submit(), 1)
			proxy.Accept()
			w.awaitEvents(consumer.EventSubmitted, 2)
			w.awaitTasks(1, retry.StatusSuccess)
			msg.MessageID = "m2" // not the same: a task of its own
			w.submit(submit.Encode(msg))
			w.awaitTasks(2, retry.StatusSuccess)
			w.settled(stop)
			runs.once(t, 1)
		})
	}
}

func TestRowsOfABrokerThatWasAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy, url := testenv.ProxyURL(t, testenv.AMQPURL(t))
	proxy.Refuse()
	p := w.publisher(w.store, url)
	r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "order", Args: order{1}})
	if err != nil || r.Submitted || !r.Created {
		t.Fatalf("%+v, %v", r, err)
	}
	err = p.Do(t.Context(), publisher.Task{Scene: "order", Args: order{1}}, func(context.Context) error { return errors.New("boom") })
	if !errors.Is(err, retry.ErrEscalated) {
		t.Fatal(err)
	}
	w.start(w.config(), consumer.Handle(fast("order", retry.UnknownRepeat), succeed))
	w.awaitTasks(2, retry.StatusSuccess)
}

func TestForeignClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := make(chan *consumer.Job[order], 1)
	stop := w.start(w.config(), consumer.Handle(fast("order", ""), func(_ context.Context, j *consumer.Job[order]) error {
		if j.Args.N == 1 {
			got <- j
		}
		return nil
	}))
	w.submit(amqp.Publishing{Headers: amqp.Table{"spillway-scene": "order"}, Body: []byte(`{"N":1}`)})
	j := testenv.Receive(t, 20*time.Second, "the task runs", got)
	if left := time.Until(j.Deadline); j.Task.ContentType != "application/json" || !strings.HasPrefix(j.Task.Key, "auto:") || left < 6*24*time.Hour || left > retry.DefaultDeadline {
		t.Errorf("%+v, deadline in %v", j.Task, left)
	}
	w.submit(amqp.Publishing{
		Headers: amqp.Table{"spillway-scene": "order", "spillway-key": "k", "spillway-delay": int32(3_600_000), "spillway-deadline": "7200000",
			"spillway-headers": amqp.Table{"trace": "t"}, "spillway-workflow": "w", "spillway-sent": time.Now().Add(-30 * time.Minute).UnixMilli()},
		Body: []byte(`{"N":2}`),
	})
	w.submit(amqp.Publishing{Headers: amqp.Table{"spillway-scene": "order", "spillway-delay": int32(60_000), "spillway-sent": time.Now().Add(-time.Hour).UnixMilli()}, Body: []byte(`{"N":3}`)})
	w.submit(amqp.Publishing{Headers: amqp.Table{"spillway-scene": "of.another.build"}, ContentType: "text/plain", Body: []byte("hello")})
	w.awaitEvents(consumer.EventSubmitted, 4)
	w.settled(stop)
	for _, task := range w.tasks() {
		left := task.NextAt.Sub(task.CreatedAt)
		switch string(task.Args) {
		case `{"N":1}`:
		case `{"N":2}`: // half of its time is over
			if task.Key != "k" || task.Workflow != "w" || task.Headers["trace"] != "t" || left < 29*time.Minute || left > 32*time.Minute || task.DeadlineAt.Sub(task.CreatedAt).Round(time.Minute) != 90*time.Minute {
				t.Errorf("%+v, due in %v", task, left)
			}
		case `{"N":3}`:
			if left != 0 {
				t.Errorf("due in %v", left)
			}
		case "hello":
			if task.Status != retry.StatusWait || task.Attempt != 0 || task.ContentType != "text/plain" {
				t.Errorf("%+v", task)
			}
		default:
			t.Errorf("%+v", task)
		}
	}
}

// Calls that failed before they were submitted are decided about as in the publisher.
func TestSubmittedEscalations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := retry.Scene{Name: "slow", Unknown: retry.UnknownRepeat, Policy: retry.Policy{Kind: retry.Fixed, Base: time.Hour, Deadline: 24 * time.Hour, MaxAttempts: 3}}
	ask := retry.Scene{Name: "ask", Unknown: retry.UnknownAsk, Policy: slow.Policy, QueryPolicy: slow.Policy}
	stop := w.start(w.config(), consumer.Handle(slow, succeed), consumer.Handle(fast("order", ""), succeed), consumer.HandleSteps(ask, consumer.Steps[order]{
		Execute: succeed,
		Query:   func(context.Context, *consumer.Job[order]) (retry.Answer, error) { return retry.CannotTell, nil },
	}))
	sent := time.Now().Add(-10 * time.Minute)
	tests := map[string]struct {
		msg    submit.Message
		status retry.Status
		reason retry.Reason
		check  func(t *testing.T, task retry.Task, e persistence.Event)
	}{
		"waits": {submit.Message{Scene: "slow", By: "p", Attempt: &submit.Attempt{Class: retry.ClassTransient, Elapsed: time.Minute, RetryAfter: 3 * time.Hour}},
			retry.StatusWait, retry.ReasonScheduleRetry, func(t *testing.T, task retry.Task, e persistence.Event) {
				if d := task.NextAt.Sub(task.CreatedAt).Round(time.Minute); d != 170*time.Minute { // of what the other side asked for, ten minutes are over
					t.Errorf("due in %v", d)
				}
				if d := task.DeadlineAt.Sub(task.CreatedAt).Round(time.Minute); d != 24*time.Hour-11*time.Minute {
					t.Errorf("deadline in %v", d)
				}
				if e.Actor != "p" || e.Facts.Elapsed.Round(time.Minute) != 11*time.Minute || e.Facts.Deadline != 24*time.Hour || !strings.Contains(e.Note, "submit queue") {
					t.Errorf("%+v %+v", e, e.Facts)
				}
			}},
		"too late": {submit.Message{Scene: "slow", Deadline: 5 * time.Minute, Attempt: &submit.Attempt{Class: retry.ClassTransient}},
			retry.StatusFailed, retry.ReasonDeadlineExceeded, func(t *testing.T, task retry.Task, e persistence.Event) {
				if task.StopReason != retry.ReasonDeadlineExceeded || task.FinishedAt == nil || e.Actor == "" {
					t.Errorf("%+v", task)
				}
			}},
		"unknown":                     {submit.Message{Scene: "order", Attempt: &submit.Attempt{Class: retry.ClassUnknown}}, retry.StatusManualReview, retry.ReasonManualReview, nil},
		"unknown, of another build":   {submit.Message{Scene: "new", Attempt: &submit.Attempt{Class: retry.ClassUnknown}}, retry.StatusManualReview, retry.ReasonManualReview, nil},
		"transient, of another build": {submit.Message{Scene: "new", Attempt: &submit.Attempt{Class: retry.ClassTransient, RetryAfter: time.Hour}}, retry.StatusWait, retry.ReasonScheduleRetry, nil},
		"unknown, to be asked about": {submit.Message{Scene: "ask", Attempt: &submit.Attempt{Class: retry.ClassUnknown, Calls: 3, Note: "three calls"}},
			retry.StatusWait, retry.ReasonScheduleRetry, func(t *testing.T, task retry.Task, e persistence.Event) {
				if task.Phase != retry.PhaseQuery || e.Facts.Calls != 3 || !strings.Contains(e.Note, "three calls") {
					t.Errorf("%+v %+v", task, e)
				}
			}},
		"unknown, where repeating is safe": {submit.Message{Scene: "slow", Attempt: &submit.Attempt{Class: retry.ClassUnknown}}, retry.StatusWait, retry.ReasonScheduleRetry, nil},
	}
	for name, tt := range tests {
		m := tt.msg
		m.Key, m.MessageID, m.Args, m.ContentType, m.Sent = name, name, []byte("{}"), submit.ContentJSON, sent
		m.Attempt.Error = "boom"
		w.submit(submit.Encode(m))
	}
	w.awaitEvents(consumer.EventSubmitted, len(tests))
	w.settled(stop)
	for _, task := range w.tasks() {
		tt := tests[task.Key]
		events, err := w.store.Events(t.Context(), task.ID)
		if err != nil || len(events) != 1 {
			t.Fatalf("%s: %d events, %v", task.Key, len(events), err)
		}
		e := events[0]
		rules, err := w.store.Policy(t.Context(), task.Scene, e.PolicyVersion)
		if err != nil || *e.Decision != retry.Decide(rules, *e.Facts) || e.Facts.TaskID != task.ID {
			t.Errorf("%s: %v, decision %+v of %+v", task.Key, err, e.Decision, e.Facts)
		}
		if task.Status != tt.status || e.To != tt.status || e.Reason != tt.reason || e.Attempt != 0 || task.Attempt != 0 || task.LastError != "boom" || task.LastClass != tt.msg.Attempt.Class {
			t.Errorf("%s: %+v, %+v", task.Key, task, e)
		}
		if tt.check != nil {
			tt.check(t, task, e)
		}
	}
}

// One bad message does not hold the others up.
func TestSubmittedMessagesThatAreParked(t *testing.T) {
	t.Parallel()
	for _, kind := range []topology.QueueKind{topology.Classic, topology.Quorum} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind)
			w.exec(`ALTER TABLE {task} ADD CHECK (key <> 'refused')`)
			w.insert(persistence.NewTask{Scene: "order", Key: "held", Delay: time.Hour})
			scene := func(h amqp.Table) amqp.Table {
				if h == nil {
					h = amqp.Table{}
				}
				h["spillway-scene"] = "order"
				return h
			}
			good := func(i int) amqp.Publishing {
				return amqp.Publishing{Headers: scene(amqp.Table{"spillway-key": fmt.Sprint("good ", i)}), MessageId: fmt.Sprint("g", i), Body: []byte(`{"N":1}`)}
			}
			bad := map[string]amqp.Publishing{
				`spillway-scene: scene: "" is not allowed`:                 {Body: []byte("{}")},
				`spillway-delay: "soon" is not allowed`:                    {Headers: scene(amqp.Table{"spillway-delay": "soon"}), Body: []byte("{}"), CorrelationId: "c"},
				`body: "not json" is not allowed`:                          {Headers: scene(nil), Body: []byte("not json")},
				`body: "2049 bytes" is not allowed: must be at most`:       {Headers: scene(nil), Body: make([]byte, 2049)},
				`scene order, key "held": ` + retry.ErrKeyConflict.Error(): {Headers: scene(amqp.Table{"spillway-key": "held", "x-mine": "kept"}), Body: []byte(`{"N":2}`)},
				`message id "g0" or task id 0 was used for another`:        {Headers: scene(nil), MessageId: "g0", Body: []byte(`{"N":3}`)},
				`violates check constraint`:                                {Headers: scene(amqp.Table{"spillway-key": "refused"}), Body: []byte("{}")},
				"":                                                         {Headers: scene(amqp.Table{"long": strings.Repeat("x", 100<<10), "spillway-key": "\n"}), Body: []byte("{}")},
			}
			n := 0
			for range 3 {
				w.submit(good(n))
				n++
			}
			for _, p := range bad {
				w.submit(p)
				w.submit(good(n))
				n++
			}
			var runs tally
			cfg := w.config()
			cfg.MaxPayload, cfg.Kind = 2048, kind
			stop := w.start(cfg, runs.handler(fast("order", "")))
			w.awaitEvents(consumer.EventParked, len(bad))
			w.awaitEvents(consumer.EventFinished, n)
			w.awaitQueue(w.names().Parked(), len(bad))
			w.settled(stop)
			runs.once(t, n)
			for range bad {
				d, ok, err := w.amqp.Get(w.names().Parked(), true)
				if err != nil || !ok {
					t.Fatalf("parked: %v, %v", ok, err)
				}
				reason, _ := d.Headers["spillway-reason"].(string)
				found := false
				for text, p := range bad {
					found = found || string(p.Body) == string(d.Body) && (text != "") == (reason != "") && strings.Contains(reason, text) && p.CorrelationId == d.CorrelationId && p.Headers["x-mine"] == d.Headers["x-mine"]
				}
				if !found || reason != "" && d.Headers["x-death"] != nil || d.DeliveryMode == amqp.Transient && reason != "" {
					t.Errorf("parked %q: %q, mode %d", reason, d.Body[:min(len(d.Body), 80)], d.DeliveryMode)
				}
			}
		})
	}
}

func TestSubmitQueueDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.Declare = true
	w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	testenv.Eventually(t, 20*time.Second, func() bool { _, n := w.queue(w.names().Submit()); return n == 1 }, "the subscription")
	if _, err := w.amqp.QueueDelete(w.names().Submit(), false, false, false); err != nil {
		t.Fatal(err)
	}
	conn := testenv.AMQP(t)
	testenv.Eventually(t, 20*time.Second, func() bool {
		_, err := topology.Depth(t.Context(), conn, w.names().Submit())
		return err == nil
	}, "the queue is back")
	// Its binding follows a moment later.
	n := 0
	testenv.Eventually(t, 20*time.Second, func() bool {
		w.submit(amqp.Publishing{Headers: amqp.Table{"spillway-scene": "order", "spillway-key": "k"}, Body: []byte(`{"N":1}`)})
		n++
		return w.count(consumer.EventSubmitted) > 0
	}, "tasks are taken again")
	w.awaitTasks(1, retry.StatusSuccess)
	t.Logf("%d messages", n)
}

func TestSubmittedWhileAllPlacesAreTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.Concurrency = 1
	var runs atomic.Int32
	release := make(chan struct{})
	w.start(cfg, gated(&runs, release))
	w.enqueue(publisher.Task{Scene: "order", Args: order{1}})
	w.awaitEvents(consumer.EventStarted, 1)
	for i := range 200 {
		w.submit(amqp.Publishing{Headers: amqp.Table{"spillway-scene": "order"}, Body: fmt.Appendf(nil, `{"N":%d}`, i+2)})
	}
	w.awaitEvents(consumer.EventSubmitted, 200)
	w.awaitQueue(w.names().Submit(), 0)
	close(release)
	w.awaitTasks(201, retry.StatusSuccess)
}

// A stop does not wait for Postgres, and what was in hand goes back.
func TestStopWithSubmittedTasksInHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, topology.Quorum)
	proxy, store := w.through()
	log := &book{}
	cfg := w.config()
	cfg.Store, cfg.Kind, cfg.Logger = store, topology.Quorum, log.logger()
	stop := w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	testenv.Eventually(t, 20*time.Second, func() bool { _, n := w.queue(w.names().Submit()); return n == 1 }, "the subscription")
	proxy.Refuse()
	proxy.Cut()
	const n = 100
	for i := range n {
		w.submit(amqp.Publishing{Headers: amqp.Table{"spillway-scene": "order"}, MessageId: fmt.Sprint(i), Body: []byte(`{"N":1}`)})
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return log.says("cannot store submitted tasks") }, "the submitter says that it waits")
	w.awaitQueue(w.names().Submit(), n-64) // no more in hand than that
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.awaitQueue(w.names().Submit(), n)
	cfg.Store, cfg.Name = w.store, ""
	w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	w.awaitTasks(n, retry.StatusSuccess)
}
