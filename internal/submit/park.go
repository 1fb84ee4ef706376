package submit

import (
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/retry"
)

const (
	// maxReason bounds the reason in bytes.
	maxReason = 2048
	// maxParked bounds the headers of a parked message, whose reason comes on top of what
	// it had: they have to fit into one frame.
	maxParked = 64 << 10
)

// Park makes the message that tells a person why this one was not taken. ok is false where its
// headers leave no room for that.
func Park(d *amqp.Delivery, reason error) (p amqp.Publishing, ok bool) {
	h := amqp.Table{}
	size := 0
	for name, v := range d.Headers {
		if !brokers(name) {
			h[name] = v
			size += len(name) + len(fmt.Sprint(v)) + 16 // at least what it takes on the wire
		}
	}
	// One line for those who read it in the management UI.
	h[HeaderReason] = retry.CutString(strings.ReplaceAll(reason.Error(), "\n", "; "), maxReason)
	// Not the expiration, at which it would be dropped, nor the user id, which the broker
	// compares with ours.
	return amqp.Publishing{
		Headers: h, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}, size <= maxParked
}

// brokers reports whether the broker adds the header or acts on it: x-death triggers its search
// for cycles, CC sends copies.
func brokers(name string) bool {
	for _, prefix := range []string{"x-death", "x-first-death-", "x-last-death-", "x-delivery-", "x-acquired-", "x-opt-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == "CC" || name == "BCC"
}
