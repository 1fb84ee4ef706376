package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // until the process ends
	mail := consumer.Handle(retry.Scene{Name: "mail.send"}, func(_ context.Context, job *consumer.Job[map[string]string]) error {
		log.Printf("mail to %s: attempt %d, key %s", job.Args["to"], job.Attempt, job.IdempotencyKey())
		return nil // an error is classed: the task is tried again, or stops with a reason
	})
	service, dsn, broker := os.Getenv("SPILLWAY_SERVICE"), os.Getenv("SPILLWAY_POSTGRES_DSN"), os.Getenv("SPILLWAY_AMQP_URL")
	if store, err := persistence.Open(persistence.Config{DSN: dsn, Service: service}); err != nil {
		log.Fatal(err)
	} else if c, err := consumer.New(consumer.Config{Service: service, Store: store, AMQPURL: broker, Declare: true}, mail); err != nil {
		log.Fatal(err)
	} else if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
