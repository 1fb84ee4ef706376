package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/topology"
)

// The roles of processes.
const (
	roleConsumer  = "consumer"
	rolePublisher = "publisher"
)

// worker is a process under test.
type worker struct {
	Name        string // of this process and no other; what it writes in Postgres bears it
	PostgresDSN string
	AMQPURL     string
	Downstream  string // host:port
	Seed        uint64
	log         *slog.Logger

	mu  sync.Mutex
	out io.Writer // lines of JSON, a said each; guarded by mu
}

// said is what a process tells the harness.
type said struct {
	Event string `json:"event"`
	Key   string `json:"key,omitempty"`
	Scene string `json:"scene,omitempty"`
	Task  int64  `json:"task,omitempty"`
	Text  string `json:"text,omitempty"`

	Attempt int    `json:"attempt,omitempty"` // of finished and lost_claim
	Status  string `json:"status,omitempty"`
}

// say writes a line. The harness may be gone; then so are we, soon.
func (w *worker) say(s said) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = json.NewEncoder(w.out).Encode(s)
}

// store is the process's own. Its statements bear the process's name, by which the audit knows who wrote.
func (w *worker) store() (*persistence.Postgres, error) {
	return openStore(w.PostgresDSN, w.Name, w.log)
}

func openStore(dsn, name string, log *slog.Logger) (*persistence.Postgres, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, errors.New("SPILLWAY_POSTGRES_DSN: must be a URL here, so that it can be led through a proxy")
	}
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	return persistence.Open(persistence.Config{
		DSN: u.String(), Service: service, Schema: schema, Horizon: topology.Horizon, StatementTimeout: 10 * time.Second, Logger: log,
	})
}

// consume is a consumer process: it consumes until ctx is done.
func (w *worker) consume(ctx context.Context) error {
	store, err := w.store()
	if err != nil {
		return err
	}
	call := newCaller(w.Downstream, w.Name)
	defer call.client.CloseIdleConnections()
	var handlers []consumer.Handler
	for _, s := range scenes() {
		handlers = append(handlers, s.handle(s.Scene, call))
	}
	c, err := consumer.New(consumer.Config{
		Service: service, Store: store, AMQPURL: w.AMQPURL, Name: w.Name, Logger: w.log, Declare: true,
		Lease: lease, ScanInterval: time.Second, Concurrency: 16, Grace: 10 * time.Second,
		OnEvent: func(e consumer.Event) {
			if e.Kind == consumer.EventFinished || e.Kind == consumer.EventLostClaim || e.Kind == consumer.EventSubscribed {
				w.say(said{Event: string(e.Kind), Task: e.Task, Attempt: e.Attempt, Status: string(e.Status)})
			}
		},
	}, handlers...)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(c.Run(ctx), store.Close())
}
