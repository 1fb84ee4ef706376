package main

import (
	"context"
	"log"
	"os"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
)

func main() {
	ctx, service := context.Background(), os.Getenv("SPILLWAY_SERVICE")
	store, err := persistence.Open(persistence.Config{DSN: os.Getenv("SPILLWAY_POSTGRES_DSN"), Service: service})
	if err != nil {
		log.Fatal(err)
	}
	pub, err := publisher.New(publisher.Config{Service: service, Store: store, AMQPURL: os.Getenv("SPILLWAY_AMQP_URL")})
	if err != nil {
		log.Fatal(err)
	}
	mail := publisher.Task{Scene: "mail.send", Key: "welcome-anna", Args: map[string]string{"to": "anna@example.com"}}
	result, err := pub.Enqueue(ctx, mail) // nil: the task is in Postgres, whatever happens next
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("task %d: %s", result.ID, result.Status)
	_ = pub.Close(ctx) // sends the wake-up; were it lost, the scan would find the task
}
