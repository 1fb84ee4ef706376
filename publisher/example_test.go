package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// Refund is what a handler of payment.refund needs.
type Refund struct {
	Order string `json:"order"`
	Cents int    `json:"cents"`
}

// A service makes one publisher and hands it calls and tasks.
func Example() {
	ctx := context.Background()
	store, drop, err := exampleStore(ctx) // a service: persistence.Open
	if err != nil {
		fmt.Println(err)
		return
	}
	defer drop()

	// Repeating a refund is safe: the bank knows our key.
	refunds := retry.Scene{Name: "payment.refund", Unknown: retry.UnknownRepeat, Local: retry.Local{Pause: time.Millisecond}}
	pub, err := publisher.New(publisher.Config{
		Service: "orders", Store: store, AMQPURL: os.Getenv("SPILLWAY_AMQP_URL"), Scenes: []retry.Scene{refunds}, Logger: quiet(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_ = pub.Close(ctx) // what is not flushed by then is the scan's
	}()

	// Do calls at once; what keeps failing is remembered.
	task := publisher.Task{Scene: "payment.refund", Key: "refund-o-1", Args: Refund{"o-1", 4200}}
	err = pub.Do(ctx, task, func(context.Context) error { return errors.New("bank says 503") })
	switch {
	case err == nil:
		fmt.Println("refunded")
	case errors.Is(err, retry.ErrEscalated):
		fmt.Println("will be refunded")
	default:
		fmt.Println("not refunded:", err)
	}

	// Enqueue leaves it all to the consumers. The key makes a repetition harmless.
	task = publisher.Task{Scene: "payment.refund", Key: "refund-o-2", Args: Refund{"o-2", 100}, Delay: time.Hour}
	for range 2 {
		r, err := pub.Enqueue(ctx, task)
		fmt.Println("enqueued:", r.Created, r.Status, err)
	}
	// Output:
	// will be refunded
	// enqueued: true WAIT <nil>
	// enqueued: false WAIT <nil>
}

// A task that must exist exactly if the business change does.
func ExamplePublisher_EnqueueTx() {
	ctx := context.Background()
	store, drop, err := exampleStore(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer drop()
	pub, err := publisher.New(publisher.Config{
		Service: "orders", Store: store, AMQPURL: os.Getenv("SPILLWAY_AMQP_URL"), Logger: quiet(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_ = pub.Close(ctx)
	}()

	tx, err := store.DB().BeginTx(ctx, nil) // or a pool of yours on the same database
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	// UPDATE orders SET … in the same transaction
	results, err := pub.EnqueueTx(ctx, tx, publisher.Task{Scene: "mail.send", Key: "shipped-o-1", Args: map[string]string{"order": "o-1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
		return
	}
	// Without this the next scan would wake it.
	if err := pub.Wake(ctx, results[0].ID); err != nil {
		fmt.Println("later:", err)
	}
	fmt.Println("stored:", results[0].Created)
	// Output: stored: true
}

// exampleStore is a store in a schema of its own, which drop removes.
func exampleStore(ctx context.Context) (store *persistence.Postgres, drop func(), err error) {
	dsn, schema := os.Getenv("SPILLWAY_POSTGRES_DSN"), "example_"+uuid.NewString()[:8]
	if dsn == "" {
		return nil, nil, errors.New(`SPILLWAY_POSTGRES_DSN is not set: run scripts/services up && eval "$(scripts/services env)"`)
	}
	m, err := persistence.NewMigrator(dsn, schema, nil)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = m.Close() }()
	if _, err := m.Up(ctx); err != nil {
		return nil, nil, err
	}
	store, err = persistence.Open(persistence.Config{DSN: dsn, Schema: schema, Service: "orders"})
	if err != nil {
		return nil, nil, err
	}
	return store, func() {
		_, err := store.DB().ExecContext(ctx, "DROP SCHEMA "+schema+" CASCADE")
		if err = errors.Join(err, store.Close()); err != nil {
			fmt.Println(err)
		}
	}, nil
}
