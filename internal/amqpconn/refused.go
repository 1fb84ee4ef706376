package amqpconn

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Refused adds to an ACCESS_REFUSED of the broker which permission of the user is missing:
// configure, write or read. RabbitMQ names user and entity, but before 3.11 not the permission.
// Other errors are returned as they are.
func Refused(err error, permission string) error {
	var ae *amqp.Error
	if errors.As(err, &ae) && ae.Server && ae.Code == amqp.AccessRefused {
		return fmt.Errorf("%w (the user lacks the permission %s; docs/operations.md has the patterns)", err, permission)
	}
	return err
}
