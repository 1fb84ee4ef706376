package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// Servers are the demo's addresses.
type Servers struct {
	PostgresDSN string
	AMQPURL     string
}

// said is what a worker tells its parent, a line of JSON each.
type said struct {
	Kind    consumer.EventKind `json:"kind"`
	Task    int64              `json:"task,omitempty"`
	Attempt int                `json:"attempt,omitempty"`
	LateUS  int64              `json:"late_us,omitempty"`
}

// Work is a consumer process: it consumes until ctx is done. What happens is
// written to out.
func Work(ctx context.Context, servers Servers, name, url string, out io.Writer, log *slog.Logger) error {
	store, err := openStore(servers)
	if err != nil {
		return err
	}
	var mu sync.Mutex // of out
	enc := json.NewEncoder(out)
	cfg := consumer.Config{
		Service: Service, Store: store, AMQPURL: servers.AMQPURL, Name: name, Logger: log,
		Lease: 3 * time.Second, ScanInterval: time.Second, Concurrency: 32,
		OnEvent: func(e consumer.Event) {
			if e.Kind != consumer.EventStarted && e.Kind != consumer.EventSubscribed && e.Kind != consumer.EventLostClaim {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			// The parent may be gone; then so are we, soon.
			_ = enc.Encode(said{Kind: e.Kind, Task: e.Task, Attempt: e.Attempt, LateUS: e.Late.Microseconds()})
		},
	}
	call := newCaller(url)
	defer call.client.CloseIdleConnections()
	var handlers []consumer.Handler
	for _, s := range scenes() {
		handlers = append(handlers, consumer.Handle(s, func(ctx context.Context, j *consumer.Job[charge]) error {
			return call.call(ctx, s, j.Task.Key, j.Task.ClaimToken, j.Attempt, j.Args)
		}))
	}
	c, err := consumer.New(cfg, handlers...)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(c.Run(ctx), store.Close())
}

func openStore(servers Servers) (*persistence.Postgres, error) {
	return persistence.Open(persistence.Config{DSN: servers.PostgresDSN, Service: Service, Schema: Schema, Horizon: topology.Horizon})
}

// scene returns one of scenes.
func scene(name string) (retry.Scene, error) {
	for _, s := range scenes() {
		if s.Name == name {
			return s, nil
		}
	}
	return retry.Scene{}, fmt.Errorf("no scene %s", name)
}
