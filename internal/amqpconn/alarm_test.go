package amqpconn_test

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/testenv"
)

// The broker takes no messages and does not read what publishers send.
func TestAlarm(t *testing.T) {
	server := testenv.NewServer(t, testenv.ServerConfig{})
	server.Use(t)
	for _, r := range []testenv.Resource{testenv.Memory, testenv.Disk} {
		t.Run(string(r), func(t *testing.T) { testAlarm(t, server, r) })
	}
}

func testAlarm(t *testing.T, server *testenv.Server, r testenv.Resource) {
	first, second := open(t, amqpconn.Config{URL: testenv.AMQPURL(t)}), open(t, amqpconn.Config{URL: testenv.AMQPURL(t)})
	consuming := open(t, amqpconn.Config{URL: testenv.AMQPURL(t), Heartbeat: time.Second})
	publishers := []*amqpconn.Session{session(t, first), session(t, second)}
	reader := session(t, consuming)
	for _, s := range publishers {
		works(t, s)
		testenv.Closed(t, time.Second, "not blocked", s.Unblocked())
	}
	server.Alarm(r, true)
	for _, s := range publishers {
		ch, err := s.OpenChannel(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		// The broker says so only to who publishes.
		if err := ch.Publish("", "amqpconn-nowhere", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 10*time.Second, func() bool { return s.Blocked() != "" }, "the connection is blocked")
		select {
		case <-s.Unblocked():
			t.Error("unblocked")
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := s.OpenChannel(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	if st := first.State(); !st.Connected || st.Blocked != "low on "+string(r) || st.BlockedSince.IsZero() {
		t.Errorf("%+v", st)
	}
	closeWithin(t, first, 10*time.Second, 2*time.Second)
	// Who does not publish goes on.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := reader.OpenChannel(ctx, nil); err != nil || reader.Blocked() != "" {
		t.Error(err, reader.Blocked())
	}
	server.Alarm(r, false)
	testenv.Closed(t, 10*time.Second, "the alarm is over", publishers[1].Unblocked())
	works(t, publishers[1])
	if st := second.State(); st.Generation != 1 || st.Blocked != "" || !st.BlockedSince.IsZero() {
		t.Errorf("%+v", st)
	}
}
