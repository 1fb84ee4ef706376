package submit

import (
	"fmt"
	"strings"
	"time"

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

// Park makes the message that tells a person why this one was not taken, and when. ok is false where its
// headers leave no room for that.
func Park(d *amqp.Delivery, reason error, now time.Time) (p amqp.Publishing, ok bool) {
	p = Copy(d)
	size := 0
	for name, v := range p.Headers {
		size += len(name) + len(fmt.Sprint(v)) + 16 // at least what it takes on the wire
	}
	// One line for those who read it in the management UI.
	p.Headers[HeaderReason] = retry.CutString(strings.ReplaceAll(reason.Error(), "\n", "; "), maxReason)
	p.Headers[HeaderParkedAt] = now.UnixMilli()
	return p, size <= maxParked
}

// Copy makes a persistent message of one that was delivered, as its publisher made it: without the headers of the
// broker and those of Park.
func Copy(d *amqp.Delivery) amqp.Publishing {
	h := amqp.Table{}
	for name, v := range d.Headers {
		if !brokers(name) && name != HeaderReason && name != HeaderParkedAt {
			h[name] = v
		}
	}
	// Not the expiration, at which it would be dropped, nor the user id, which the broker
	// compares with ours.
	return amqp.Publishing{
		Headers: h, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}
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
