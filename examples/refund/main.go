// A refund that must not be paid twice: it is recorded before the bank is called, and when the bank's answer gets lost,
// the bank is asked before anything is redone. The bank is a map in this program; its first answer gets lost.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"sync"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

type refund struct {
	Order string
	Cents int
}

type bank struct {
	mu   sync.Mutex
	paid map[string]int // by idempotency key
}

// pay takes effect, and its answer is lost.
func (b *bank) pay(key string, cents int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid[key] += cents
	return errors.New("connection reset") // not marked, so of unknown outcome
}

func (b *bank) has(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paid[key] > 0
}

// refunds is shared by the publisher and the consumer.
var refunds = retry.Scene{
	Name: "payment.refund", Unknown: retry.UnknownAsk,
	QueryPolicy: retry.Policy{Kind: retry.Exponential, Base: 200 * time.Millisecond, Cap: time.Minute, MaxAttempts: 20},
}

func main() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	service, dsn, broker := os.Getenv("SPILLWAY_SERVICE"), os.Getenv("SPILLWAY_POSTGRES_DSN"), os.Getenv("SPILLWAY_AMQP_URL")
	store, err := persistence.Open(persistence.Config{DSN: dsn, Service: service})
	if err != nil {
		log.Fatal(err)
	}
	bank := &bank{paid: map[string]int{}}
	booked := make(chan struct{})
	c, err := consumer.New(consumer.Config{Service: service, Store: store, AMQPURL: broker, Declare: true},
		consumer.HandleSteps(refunds, consumer.Steps[refund]{
			Execute: func(_ context.Context, job *consumer.Job[refund]) error {
				return bank.pay(job.Task.Key, job.Args.Cents)
			},
			Query: func(_ context.Context, job *consumer.Job[refund]) (retry.Answer, error) {
				if bank.has(job.Task.Key) {
					return retry.TookEffect, nil
				}
				return retry.NoEffect, nil
			},
			Callback: func(_ context.Context, job *consumer.Job[refund]) error {
				log.Printf("booked: %s, the bank paid %d once", job.Args.Order, bank.paid[job.Task.Key])
				close(booked)
				return nil
			},
		}))
	if err != nil {
		log.Fatal(err)
	}
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()

	pub, err := publisher.New(publisher.Config{Service: service, Store: store, AMQPURL: broker, Scenes: []retry.Scene{refunds}})
	if err != nil {
		log.Fatal(err)
	}
	order := refund{Order: "order-7-" + time.Now().Format("150405"), Cents: 1250}
	err = pub.Record(ctx, publisher.Task{Scene: refunds.Name, Key: order.Order, Args: order}, func(context.Context) error {
		return bank.pay(order.Order, order.Cents)
	})
	var escalated *retry.EscalatedError
	switch {
	case err == nil:
		log.Printf("refunded at once")
	case errors.As(err, &escalated):
		log.Printf("task %d goes on with it, because: %v", escalated.TaskID, escalated.Cause)
	default:
		log.Fatal(err) // not called, or refused for good: the refund is the caller's again
	}
	<-booked
	end()
	if err := errors.Join(<-ended, pub.Close(ctx)); err != nil {
		log.Fatal(err)
	}
}
