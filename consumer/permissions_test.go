package consumer_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// The smallest permissions of a consumer, which docs/operations.md gives.
func TestPermissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	own := `^spillway\.v1\.` + w.service + `\.`
	cfg.AMQPURL = testenv.User(t, cfg.AMQPURL, `^$`, own+`(delay|dead)$`, own+`(ready|submit)$`)
	w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	w.await(w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID, retry.StatusSuccess)
	// Taken from submit, and parked because it is none of ours.
	if err := w.amqp.Publish(w.names().Submit(), "", true, false, amqp.Publishing{Body: []byte("no task")}); err != nil {
		t.Fatal(err)
	}
	w.awaitQueue(w.names().Parked(), 1)
}

// What is missing is said, and waited for.
func TestPermissionMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg, log := w.config(), &book{}
	cfg.Logger = log.logger()
	own := `^spillway\.v1\.` + w.service + `\.`
	cfg.AMQPURL = testenv.User(t, cfg.AMQPURL, `^$`, own+`(delay|dead)$`, own+`submit$`)
	w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	testenv.Eventually(t, 20*time.Second, func() bool { return log.says("lacks the permission read") && log.says(w.names().Ready()) }, "it says what is missing")
}
