package publisher_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nowhere is a broker's address at which nothing listens (port 1, tcpmux).
const nowhere = "amqp://spillway:spillway@127.0.0.1:1/"

func amqpURL(t testing.TB) string {
	t.Helper()
	u := os.Getenv("SPILLWAY_AMQP_URL")
	if u == "" {
		t.Fatal(`SPILLWAY_AMQP_URL is not set: run scripts/services up && eval "$(scripts/services env)"`)
	}
	return u
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func serviceName() string { return "pub-" + uuid.NewString()[:13] }

// newPublisher returns a publisher with a store of its own; change may alter its
// config first. It is closed at the end unless the test did.
func newPublisher(t testing.TB, change func(*publisher.Config)) (*publisher.Publisher, *persistence.Postgres) {
	t.Helper()
	service := serviceName()
	store := storetest.OpenService(t, service)
	cfg := publisher.Config{Service: service, Store: store, AMQPURL: nowhere, Logger: quiet(), Name: "test-publisher"}
	if change != nil {
		change(&cfg)
	}
	p, err := publisher.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, p, 10*time.Second) })
	return p, store
}

func closeWithin(t testing.TB, p *publisher.Publisher, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// eventually waits until ok says true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("not within 30 s: %s", what)
		case <-tick.C:
		}
	}
}

func get(t testing.TB, s *persistence.Postgres, id int64) retry.Task {
	t.Helper()
	task, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func countTasks(t testing.TB, s *persistence.Postgres) int {
	t.Helper()
	list, err := s.List(t.Context(), persistence.Filter{Limit: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func dial(t testing.TB) *amqp.Connection {
	t.Helper()
	conn, err := amqp.DialConfig(amqpURL(t), amqp.Config{Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(10 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) })
	return conn
}

// declare makes a service's topology, which goes with the test.
func declare(t testing.TB, conn *amqp.Connection, service string) topology.Names {
	t.Helper()
	cfg := topology.Config{Service: service, Kind: topology.Classic}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := topology.Delete(ctx, conn, cfg); err != nil {
			t.Errorf("delete topology: %v", err)
		}
	})
	if err := topology.Declare(t.Context(), conn, cfg); err != nil {
		t.Fatal(err)
	}
	return cfg.Names()
}
