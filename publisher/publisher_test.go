package publisher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

func TestNewSaysAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := publisher.New(publisher.Config{
		Service: "Orders", AMQPURL: "http://u:secret@host/", MaxPayload: -1, RecordTimeout: -1, Name: strings.Repeat("n", 256),
		Scenes: []retry.Scene{{Name: "s"}, {Name: "s"}, {Name: "BAD"}, {Name: "p", Policy: retry.Policy{Kind: "HYPERBOLIC"}}},
	})
	if !errors.Is(err, retry.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"service:", "store:", "amqp url:", "max_payload:", "record_timeout:", "name:", `scenes: "s"`, `scene "BAD"`, `scene "p"`, "FIXED"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("shows the password: %v", err)
	}
}

func TestNewOfAnotherServicesStore(t *testing.T) {
	t.Parallel()
	store := storetest.OpenService(t, "billing")
	for _, cfg := range []publisher.Config{
		{Service: "orders", Store: store, AMQPURL: nowhere},
		{Service: "billing", Store: store, AMQPURL: ""},
	} {
		if _, err := publisher.New(cfg); !errors.Is(err, retry.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	p, store, ready := connected(t, nil)
	var ids []int64
	for range 300 {
		r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s"})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.ID)
	}
	parallel(t, 3, func(int) error { // more than once, and at once
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return p.Close(ctx)
	})
	ready.wait(t, ids...) // all flushed
	for _, id := range ids {
		if undispatched(t, store, id) {
			t.Errorf("task %d counts as lost", id)
		}
	}
	call, calls := failing(nil)
	_, err1 := p.Enqueue(t.Context(), publisher.Task{Scene: "s"})
	_, err2 := p.EnqueueMany(t.Context(), []publisher.Task{{Scene: "s"}})
	_, err3 := p.EnqueueTx(t.Context(), store.DB(), publisher.Task{Scene: "s"})
	for i, err := range []error{err1, err2, err3, p.Wake(t.Context(), 1), p.Do(t.Context(), publisher.Task{Scene: "s"}, call)} {
		if !errors.Is(err, publisher.ErrClosed) {
			t.Errorf("%d: after Close: %v", i, err)
		}
	}
	if *calls != 0 || countTasks(t, store) != len(ids) {
		t.Error("something was done after Close")
	}
}

func TestCloseDuringCalls(t *testing.T) {
	t.Parallel()
	p, store, _ := connected(t, nil)
	running := make(chan struct{}, 16)
	stored := make(chan int, 16)
	go func() {
		for range 8 {
			<-running
		}
		closeWithin(t, p, 20*time.Second)
	}()
	parallel(t, 8, func(int) error {
		n := 0
		for {
			_, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s"})
			if errors.Is(err, publisher.ErrClosed) {
				stored <- n
				return nil
			}
			if err != nil {
				return err
			}
			if n++; n == 5 {
				running <- struct{}{}
			}
		}
	})
	close(stored)
	sum := 0
	for n := range stored {
		sum += n
	}
	if n := countTasks(t, store); n != sum {
		t.Errorf("%d tasks stored, %d said to be", n, sum)
	}
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	p, _ := newPublisher(t, nil)
	called, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Do(context.Background(), publisher.Task{Scene: "s"}, func(context.Context) error {
			close(called)
			<-release
			return nil
		})
	}()
	<-called
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(release)
	<-done
}

func BenchmarkDoLocalSuccess(b *testing.B) {
	store, err := persistence.Open(persistence.Config{DSN: "postgres://a:b@127.0.0.1:1/x?sslmode=disable", Service: "orders"})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	for _, scenes := range [][]retry.Scene{{{Name: "payment.refund"}}, nil} {
		name := "named scene"
		if scenes == nil {
			name = "any scene"
		}
		p, err := publisher.New(publisher.Config{Service: "orders", Store: store, AMQPURL: nowhere, Scenes: scenes, Logger: quiet()})
		if err != nil {
			b.Fatal(err)
		}
		ctx := b.Context()
		type args struct{ Order string }
		ok := func(context.Context) error { return nil }
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Do(ctx, publisher.Task{Scene: "payment.refund", Key: "order-12345678", Args: args{"o-1"}}, ok); err != nil {
					b.Fatal(err)
				}
			}
		})
		closeWithin(b, p, 10*time.Second)
	}
}

func BenchmarkEnqueue16(b *testing.B) {
	p, _, _ := connected(b, nil)
	b.SetParallelism(8) // times GOMAXPROCS, which is 2 where this was written
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := p.Enqueue(b.Context(), publisher.Task{Scene: "s", Args: "some arguments"}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
}

func BenchmarkEnqueueMany1000(b *testing.B) {
	p, _, _ := connected(b, nil)
	tasks := make([]publisher.Task, 1000)
	for i := range tasks {
		tasks[i] = publisher.Task{Scene: "s", Args: "some arguments"}
	}
	b.ResetTimer()
	for range b.N {
		if _, err := p.EnqueueMany(b.Context(), tasks); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(tasks))/b.Elapsed().Seconds(), "tasks/s")
}
