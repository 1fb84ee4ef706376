package waker

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/topology"
)

// BenchmarkWaker publishes wake-ups that are due at once, confirmed, with nobody
// consuming: the broker stores them all in ready.
func BenchmarkWaker(b *testing.B) {
	for _, kind := range []topology.QueueKind{topology.Quorum, topology.Classic} {
		b.Run(string(kind), func(b *testing.B) {
			service := testenv.Service(b) // two runs at once must not delete each other's
			testenv.DeclareTopology(b, service, kind)
			w, failed := start(b, Config{Conn: connect(b, amqpconn.Config{}), Service: service})
			works(b, w)
			run(b, w)
			if failed.count() > 0 {
				b.Errorf("%d failed: %v", failed.count(), failed.last())
			}
		})
	}
	// The client's own limit: the broker drops what it gets.
	b.Run("one short queue", func(b *testing.B) {
		service := testenv.Service(b)
		ch, exchange := bare(b, service)
		queue(b, ch, exchange, "#", amqp.Table{"x-max-length": 1})
		w, _ := start(b, Config{Conn: connect(b, amqpconn.Config{}), Service: service})
		works(b, w)
		run(b, w)
	})
}

func run(b *testing.B, w *Waker) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		begin := time.Now()
		const n = 20_000
		w.Enqueue(wakes(0, n)...)
		if err := w.Flush(within(b, time.Minute)); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(n/time.Since(begin).Seconds(), "wakes/s")
	}
}
