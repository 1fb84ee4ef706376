package waker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/internal/amqpconn"
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
	service := testenv.Service(t)
	ch, exchange := bare(t, service)
	q := queue(t, ch, exchange, "#", nil)
	conn := connect(t, amqpconn.Config{})
	w, failed := start(t, Config{Conn: conn, Service: service, Patience: 300 * time.Millisecond, ConfirmTimeout: 2 * time.Second})
	other, otherFailed := start(t, Config{Conn: connect(t, amqpconn.Config{Name: service + " other"}), Service: service, Patience: 300 * time.Millisecond})
	works(t, w)
	works(t, other)
	server.Alarm(r, true)

	// What is sent before the broker says so gets no confirm; the rest is not sent.
	begin := time.Now()
	c := newTally()
	c.add(w, wakes(0, 5000))
	testenv.Eventually(t, 10*time.Second, func() bool { return c.settled() >= 5000 }, "all are settled")
	t.Logf("settled after %v", time.Since(begin))
	c.once(t, 5000)
	if c.well != 0 {
		t.Errorf("%d confirmed", c.well)
	}
	if st := conn.State(); !st.Connected || st.Blocked == "" {
		t.Errorf("%+v", st)
	}
	begin = time.Now()
	w.Enqueue(wakes(0, 10_000)...)
	if took := time.Since(begin); took > time.Second {
		t.Errorf("Enqueue took %v", took)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return failed.count() == 10_000 }, "all are reported")
	if !errors.Is(failed.last(), ErrUnavailable) || !strings.Contains(failed.last().Error(), string(r)) {
		t.Error(failed.last())
	}
	// Closing with messages out that are never confirmed.
	other.Enqueue(wakes(0, 1000)...)
	closeWithin(t, other, 500*time.Millisecond, 4*time.Second)
	if n := otherFailed.count(); n != 1000 {
		t.Errorf("%d reported", n)
	}

	server.Alarm(r, false)
	works(t, w)
	if conn.State().Generation != 1 {
		t.Error("the connection was all right")
	}
	t.Logf("%d messages of those that failed arrived", depth(t, ch, q))
}
