package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/topology"
)

// reachTime is how long a command other than serve waits for a server.
const reachTime = 15 * time.Second

// Names of the settings that commands require.
const (
	varService = "SPILLWAY_SERVICE"
	varDSN     = "SPILLWAY_POSTGRES_DSN"
	varAMQP    = "SPILLWAY_AMQP_URL"
)

// logger writes to stderr as the settings say.
func (a *app) logger(s settings.Settings) *slog.Logger {
	opts := &slog.HandlerOptions{Level: s.LogLevel}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(a.err, opts))
	}
	return slog.New(slog.NewTextHandler(a.err, opts))
}

func openStore(s settings.Settings, log *slog.Logger) (*persistence.Postgres, error) {
	return persistence.Open(persistence.Config{
		DSN: s.PostgresDSN, Service: s.Service, Schema: s.PostgresSchema, MaxConns: s.PostgresMaxConns, Horizon: topology.Horizon, Logger: log,
	})
}

// withStore runs f with a store whose server answers and whose schema fits.
func (a *app) withStore(ctx context.Context, s settings.Settings, f func(*persistence.Postgres) error) error {
	store, err := openStore(s, a.logger(s))
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if err := checkStore(ctx, store); err != nil {
		return err
	}
	return f(store)
}

// checkStore is bounded by reachTime.
func checkStore(ctx context.Context, store *persistence.Postgres) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if err := ping(ctx, store); err != nil {
		return err
	}
	return store.CheckSchema(ctx)
}

func ping(ctx context.Context, store *persistence.Postgres) error {
	if err := store.Ping(ctx); err != nil {
		return fmt.Errorf("%w (%s)", err, varDSN)
	}
	return nil
}

// dialBroker connects to RabbitMQ once. Close the connection.
func dialBroker(ctx context.Context, s settings.Settings, purpose string) (*amqp.Connection, error) {
	conn, err := amqpconn.Dial(ctx, amqpconn.Config{URL: s.AMQPURL, Name: fmt.Sprintf("spillway %s %s", s.Service, purpose), DialTimeout: reachTime})
	if err != nil {
		return nil, fmt.Errorf("reach rabbitmq: %w (%s)", err, varAMQP)
	}
	return conn, nil
}

// withBroker runs f with a connection to RabbitMQ.
func withBroker(ctx context.Context, s settings.Settings, purpose string, f func(*amqp.Connection) error) error {
	conn, err := dialBroker(ctx, s, purpose)
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) }()
	return f(conn)
}
