package dlx

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/topology"
)

// idLen is the length of an id without the ordinal: 64 bits.
const idLen = 16

// Message is a message as a walk saw it.
type Message struct {
	// ID names the message in this queue: a hash of all that it consists of, because a publisher's message id may be missing or
	// used twice. It stays the same from look to look. Of messages that are the same to the last bit, the second in the queue
	// has ".2" appended, and so on.
	ID    string `json:"id"`
	Place Place  `json:"place"`
	// Reason is why it is here.
	Reason string `json:"reason"`
	// From is the queue in which it died, or the exchange that found no way. Empty: not known.
	From string `json:"from,omitempty"`
	// Since is when it died or was parked, else the publisher's timestamp, to the second. Zero: not known.
	Since       time.Time  `json:"since,omitzero"`
	Exchange    string     `json:"exchange"`
	RoutingKey  string     `json:"routing_key"`
	MessageID   string     `json:"message_id,omitempty"`
	ContentType string     `json:"content_type,omitempty"`
	Headers     amqp.Table `json:"headers,omitempty"`
	Body        []byte     `json:"body"` // JSON: base64
	// Target is where a replay without a target of its own sends it; nil where that is not known.
	Target *Target `json:"target,omitempty"`
}

// Scene is the scene of a submitted task, or empty.
func (m *Message) Scene() string {
	scene, _ := m.Headers[submit.HeaderScene].(string)
	return scene
}

// Target is where a message is published.
type Target struct {
	Exchange   string `json:"exchange"` // empty: the default exchange, whose key is a queue's name
	RoutingKey string `json:"routing_key"`
}

// fingerprint is the id without the ordinal. The broker counts deliveries in headers, so that these change with every look.
func fingerprint(d *amqp.Delivery) string {
	headers := amqp.Table{} // never nil, which would read differently once a count came and was taken out
	maps.Copy(headers, d.Headers)
	delete(headers, "x-delivery-count")
	delete(headers, "x-acquired-count")
	h := sha256.New()
	// %#v writes types, quotes texts and sorts tables by name, so that no two messages read alike.
	_, _ = fmt.Fprintf(h, "%q %q %q %q %q %q %q %q %q %q %q %d %d %d %#v\n", d.Exchange, d.RoutingKey, d.MessageId, d.ContentType, d.ContentEncoding, d.CorrelationId,
		d.ReplyTo, d.Expiration, d.Type, d.UserId, d.AppId, d.DeliveryMode, d.Priority, d.Timestamp.Unix(), headers)
	_, _ = h.Write(d.Body)
	return hex.EncodeToString(h.Sum(nil))[:idLen]
}

// message describes a delivery.
func (b *Box) message(place Place, id string, d *amqp.Delivery) *Message {
	m := &Message{
		ID: id, Place: place, Since: d.Timestamp, Exchange: d.Exchange, RoutingKey: d.RoutingKey,
		MessageID: d.MessageId, ContentType: d.ContentType, Headers: d.Headers, Body: d.Body,
	}
	died, found := lastDeath(d.Headers)
	if !died.at.IsZero() {
		m.Since = died.at
	}
	if ms, ok := d.Headers[submit.HeaderParkedAt].(int64); ok {
		m.Since = time.UnixMilli(ms)
	}
	reason, told := d.Headers[submit.HeaderReason].(string)
	switch {
	case place == Unrouted:
		m.From, m.Reason = d.Exchange, fmt.Sprintf("no way from exchange %s with the key %q", d.Exchange, d.RoutingKey)
	case found:
		m.From, m.Reason = died.queue, died.reason+" in "+died.queue
	case told:
		m.From, m.Reason = b.names.Submit(), reason
	default:
		m.Reason = "published here without a reason"
	}
	m.Target = b.target(place, d, died, told && !found)
	return m
}

// death is an entry of x-death.
type death struct {
	queue, reason string
	at            time.Time
}

// lastDeath is the latest death, which the broker puts first.
func lastDeath(headers amqp.Table) (death, bool) {
	list, _ := headers["x-death"].([]any)
	if len(list) == 0 {
		return death{}, false
	}
	entry, _ := list[0].(amqp.Table)
	var d death
	d.queue, _ = entry["queue"].(string)
	d.reason, _ = entry["reason"].(string)
	d.at, _ = entry["time"].(time.Time)
	return d, d.queue != ""
}

// target says where a message came from. The default exchange leads to queues: it refuses where one is missing, while the due
// exchange would hand the message to unrouted.
func (b *Box) target(place Place, d *amqp.Delivery, died death, refused bool) *Target {
	submission, wakeUp := &Target{Exchange: b.names.Submit()}, &Target{RoutingKey: b.names.Ready()}
	switch died.queue {
	case b.names.Submit():
		return submission
	case b.names.Ready():
		return wakeUp
	}
	if place == Parked {
		if refused { // by the submitter, which publishes what it does not take, with the reason
			return submission
		}
		return nil
	}
	if d.Exchange == b.names.Due() {
		return wakeUp
	}
	for level := range topology.Levels {
		if d.Exchange == b.names.Level(level) {
			return wakeUp // before it is due, perhaps: then it is looked at again when it is
		}
	}
	return nil
}
