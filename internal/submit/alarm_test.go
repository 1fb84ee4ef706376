package submit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/internal/testenv"
)

// The broker takes no messages, and does not read what publishers send.
func TestAlarm(t *testing.T) {
	server := testenv.NewServer(t, testenv.ServerConfig{})
	server.Use(t)
	for _, r := range []testenv.Resource{testenv.Memory, testenv.Disk} {
		t.Run(string(r), func(t *testing.T) { testAlarm(t, server, r) })
	}
}

func testAlarm(t *testing.T, server *testenv.Server, r testenv.Resource) {
	s, ch, name, proxy := sender(t)
	q := bind(t, ch, name, nil)
	other, _, otherName, _ := sender(t)
	bind(t, ch, otherName, nil)
	for _, x := range []*submit.Sender{s, other} {
		if err := send(t, x, long); err != nil {
			t.Fatal(err)
		}
	}
	server.Alarm(r, true)
	// The first call finds out: its message is sent and not confirmed. Whoever comes once the
	// broker has said so sends nothing.
	if err := send(t, s, time.Second); !errors.Is(err, submit.ErrUnconfirmed) && !errors.Is(err, submit.ErrUnavailable) {
		t.Errorf("the first call: %v", err)
	}
	begin := time.Now()
	err := s.Send(t.Context(), message("a"), message("b"))[1]
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("a call without a deadline took %v", took)
	}
	if !errors.Is(err, submit.ErrUnavailable) || !strings.Contains(err.Error(), string(r)) {
		t.Errorf("blocked: %v", err)
	}
	if err := send(t, s, 100*time.Millisecond); !errors.Is(err, submit.ErrUnavailable) {
		t.Errorf("with little time: %v", err)
	}
	// Closing while messages are out that fill the socket and are never confirmed.
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() { errs <- other.Send(t.Context(), amqp.Publishing{Body: make([]byte, 4<<20)})[0] }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	begin = time.Now()
	other.Close(ctx)
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("close took %v", took)
	}
	for range cap(errs) {
		if err := testenv.Receive(t, long, "the end of a call", errs); err == nil {
			t.Error("confirmed in alarm")
		}
	}

	server.Alarm(r, false)
	testenv.Eventually(t, long, func() bool { return send(t, s, 5*time.Second) == nil }, "messages go out again")
	if n := depth(t, ch, q); n < 2 || n > 3 { // before, after, and perhaps what was not confirmed
		t.Errorf("%d messages", n)
	}
	if n := proxy.Accepted(); n != 1 {
		t.Errorf("%d connections: the first one was all right", n)
	}
}
