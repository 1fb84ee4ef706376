package topology

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Depth returns how many messages wait in a queue, not counting those that a
// consumer holds unacknowledged. It opens a channel each time and may be called
// concurrently. ErrMissing is in the error's chain if there is no such queue.
func Depth(ctx context.Context, conn *amqp.Connection, queue string) (int, error) {
	result := make(chan int, 1) // not a variable: after ctx ends the goroutine may still be at it
	err := inSession(ctx, conn, "depth of queue "+queue, func(s *session) error {
		depth, err := s.depth(queue)
		result <- depth
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-result, nil
}

func (s *session) depth(queue string) (int, error) {
	var depth int
	err := s.do("count queue "+queue, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		depth = q.Messages
		return err
	})
	if hasCode(err, amqp.NotFound) {
		return 0, fmt.Errorf("%w (%w)", ErrMissing, err)
	}
	return depth, err
}
