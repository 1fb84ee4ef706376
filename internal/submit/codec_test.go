package submit_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// delivery is what a consumer gets of a message.
func delivery(p amqp.Publishing) *amqp.Delivery {
	return &amqp.Delivery{Headers: p.Headers, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, MessageId: p.MessageId, Body: p.Body,
		CorrelationId: p.CorrelationId, UserId: p.UserId, Expiration: p.Expiration}
}

func TestEncodedIsDecoded(t *testing.T) {
	t.Parallel()
	sent := time.UnixMilli(1_800_000_000_123)
	for name, m := range map[string]submit.Message{
		"least": {Scene: "s", ContentType: "application/json", Args: []byte("null")},
		"task": {
			MessageID: "m", ID: 7, Scene: "mail.send", Key: "k\"ключ", Args: []byte{0, 0xff}, ContentType: "application/octet-stream",
			Headers: map[string]string{"trace": "a\nb", "ü": ""}, Delay: 90 * time.Second, Deadline: time.Hour, Workflow: "w", Sent: sent, By: "host/1",
		},
		"call": {
			MessageID: "m", Scene: "s", ContentType: "application/json", Args: []byte("{}"), Deadline: time.Hour, Sent: sent,
			Attempt: &submit.Attempt{Class: retry.ClassTransient, Error: "boom", Elapsed: 412 * time.Millisecond, RetryAfter: time.Minute, Calls: 3, Note: "two before"},
		},
	} {
		p := submit.Encode(m)
		if p.DeliveryMode != amqp.Persistent || p.Headers.Validate() != nil {
			t.Errorf("%s: %+v", name, p)
		}
		got, err := submit.Decode(delivery(p), 100)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, m)
		}
	}
}

// What a publisher may hold must not be refused by a consumer, where it would be parked.
func TestExtremesAreDecoded(t *testing.T) {
	t.Parallel()
	m := submit.Message{
		MessageID: "m", Scene: "s", Args: []byte("1"), ContentType: submit.ContentJSON, By: "\xff\x00" + strings.Repeat("x", 400),
		Delay: retry.MaxDelay, Deadline: 2 * retry.MaxDelay, Headers: map[string]string{strings.Repeat("n", 255): strings.Repeat("v", 16<<10-255)},
	}
	if _, err := submit.Decode(delivery(submit.Encode(m)), 1); err != nil {
		t.Error(err)
	}
	m.Delay, m.Attempt = 0, &submit.Attempt{Class: retry.ClassUnknown, Error: strings.Repeat("\x00\xffé", 4000), Elapsed: 1, RetryAfter: 2 * retry.MaxDelay}
	got, err := submit.Decode(delivery(submit.Encode(m)), 1)
	if err != nil || got.Attempt.Elapsed != time.Millisecond || got.Attempt.RetryAfter != retry.MaxDelay || !strings.Contains(got.Attempt.Error, "cut") {
		t.Errorf("%+v, %v", got.Attempt, err)
	}
}

func TestForeignClients(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*amqp.Delivery{
		"nothing but a scene": {Headers: amqp.Table{"spillway-scene": "s"}, Body: []byte(`{"a":1}`)},
		"small integers":      {Headers: amqp.Table{"spillway-scene": "s", "spillway-delay": int8(5), "spillway-deadline": int16(6)}, Body: []byte("1")},
		"unsigned":            {Headers: amqp.Table{"spillway-scene": "s", "spillway-delay": uint8(5), "spillway-deadline": uint32(6)}, Body: []byte("1")},
		"texts":               {Headers: amqp.Table{"spillway-scene": "s", "spillway-delay": "5", "spillway-deadline": "6"}, Body: []byte("1")},
		"the rest is theirs":  {Headers: amqp.Table{"spillway-scene": "s", "x-other": amqp.Table{}, "b3": int32(1)}, ContentEncoding: "UTF-8", ContentType: "application/json; charset=utf-8", Body: []byte("1")},
		"other content":       {Headers: amqp.Table{"spillway-scene": "s"}, ContentType: "text/csv", Body: []byte("a;b")},
		"parked once":         {Headers: amqp.Table{"spillway-scene": "s", "spillway-reason": "old", "spillway-parked-at": int64(1)}, Body: []byte("1")},
	} {
		m, err := submit.Decode(d, 10)
		if err != nil || m.Scene != "s" || m.MessageID != "" || m.Passed(time.Now()) != 0 {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		if d.Headers["spillway-delay"] != nil && (m.Delay != 5*time.Millisecond || m.Deadline != 6*time.Millisecond) {
			t.Errorf("%s: %v, %v", name, m.Delay, m.Deadline)
		}
		if d.ContentType == "" && m.ContentType != "application/json" {
			t.Errorf("%s: %s", name, m.ContentType)
		}
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]amqp.Delivery{
		`spillway-scene: scene: "" is not allowed`:                                         {Headers: amqp.Table{"spillway-scene": ""}},
		`spillway-scene: scene: "No" is not allowed`:                                       {Headers: amqp.Table{"spillway-scene": "No"}},
		`spillway-scene: "int32" is not allowed: must be a text`:                           {Headers: amqp.Table{"spillway-scene": int32(1)}},
		`spillway-key: key: "" is not allowed`:                                             {Headers: amqp.Table{"spillway-key": ""}},
		`spillway-key: key: "a\n" is not allowed`:                                          {Headers: amqp.Table{"spillway-key": "a\n"}},
		`spillway-delay: "90s" is not allowed: must be a whole number from 0 to 3153`:      {Headers: amqp.Table{"spillway-delay": "90s"}},
		`spillway-delay: -1 is not allowed`:                                                {Headers: amqp.Table{"spillway-delay": int32(-1)}},
		`spillway-delay: 1.5 is not allowed`:                                               {Headers: amqp.Table{"spillway-delay": 1.5}},
		`spillway-deadline: 5 is not allowed: must be above spillway-delay (6 ms)`:         {Headers: amqp.Table{"spillway-delay": int32(6), "spillway-deadline": int32(5)}},
		`spillway-workflow: workflow: "" is not allowed`:                                   {Headers: amqp.Table{"spillway-workflow": ""}},
		`spillway-sent: 1800000000 is not allowed`:                                         {Headers: amqp.Table{"spillway-sent": int64(1_800_000_000)}},
		`spillway-headers: "string" is not allowed: must be a table of texts`:              {Headers: amqp.Table{"spillway-headers": "a=b"}},
		`spillway-headers[a]: "int32" is not allowed: must be a text`:                      {Headers: amqp.Table{"spillway-headers": amqp.Table{"a": int32(1)}}},
		`spillway-headers: headers[a]: "" is not allowed`:                                  {Headers: amqp.Table{"spillway-headers": amqp.Table{"a": "\x00"}}},
		`spillway-id: 0 is not allowed`:                                                    {Headers: amqp.Table{"spillway-id": int32(0)}},
		`message_id: "" is not allowed: must be set where spillway-id is`:                  {Headers: amqp.Table{"spillway-id": int32(1)}},
		`message_id: "�" is not allowed`:                                                   {MessageId: "\xff"},
		`spillway-class: "permanent" is not allowed`:                                       {Headers: amqp.Table{"spillway-class": "permanent"}},
		`spillway-delay: 5 is not allowed: must be absent where spillway-class is`:         {Headers: amqp.Table{"spillway-class": "unknown", "spillway-delay": int32(5)}},
		`spillway-error: "x" is not allowed: must be absent where spillway-class is`:       {Headers: amqp.Table{"spillway-error": "x"}},
		`spillway-by: "" is not allowed: must be UTF-8 without NUL`:                        {Headers: amqp.Table{"spillway-by": "\x00"}},
		`header: "spillway-dealy" is not allowed`:                                          {Headers: amqp.Table{"spillway-dealy": int32(5)}},
		`(did you mean "spillway-delay"?)`:                                                 {Headers: amqp.Table{"spillway-dealy": int32(5)}},
		`body: "11 bytes" is not allowed: must be at most 10 bytes (max payload)`:          {Body: []byte("12345678901")},
		`body: "{" is not allowed: must be JSON where content_type is application/json or`: {Body: []byte("{")},
		`body: "" is not allowed: must be JSON`:                                            {Body: []byte{}, ContentType: "Application/JSON ; charset=x"},
		`content_encoding: "gzip" is not allowed`:                                          {ContentEncoding: "gzip"},
		`content_type: "�" is not allowed`:                                                 {ContentType: "\xff"},
	} {
		if d.Headers == nil {
			d.Headers = amqp.Table{}
		}
		if _, given := d.Headers["spillway-scene"]; !given {
			d.Headers["spillway-scene"] = "s"
		}
		if d.Body == nil {
			d.Body = []byte("1")
		}
		_, err := submit.Decode(&d, 10)
		if !errors.Is(err, retry.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
		if err != nil && strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("more than one error: %v", err)
		}
	}
	if _, err := submit.Decode(&amqp.Delivery{Body: []byte("x"), ContentEncoding: "br"}, 10); strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("not all that is wrong: %v", err)
	}
}

func TestParkedMessage(t *testing.T) {
	t.Parallel()
	d := delivery(amqp.Publishing{
		MessageId: "m", ContentType: "c", CorrelationId: "co", UserId: "guest", Expiration: "5", Body: []byte("body"),
		Headers: amqp.Table{"spillway-scene": "No", "mine": int32(1), "x-mine": "y", "x-death": []any{}, "x-first-death-queue": "q", "x-delivery-count": int64(3), "CC": []any{"a"}},
	})
	p, ok := submit.Park(d, errors.Join(errors.New("one"), errors.New("two")), time.UnixMilli(1_800_000_000_123))
	want := amqp.Table{"spillway-scene": "No", "mine": int32(1), "x-mine": "y", "spillway-reason": "one; two", "spillway-parked-at": int64(1_800_000_000_123)}
	if !ok || !reflect.DeepEqual(p.Headers, want) {
		t.Errorf("%v %v", ok, p.Headers)
	}
	if p.MessageId != "m" || p.ContentType != "c" || p.CorrelationId != "co" || string(p.Body) != "body" || p.DeliveryMode != amqp.Persistent || p.UserId != "" || p.Expiration != "" {
		t.Errorf("%+v", p)
	}
	d.Headers["mine"] = strings.Repeat("x", 100<<10)
	if _, ok := submit.Park(d, errors.New("x"), time.Now()); ok {
		t.Error("headers that leave no room")
	}
}
