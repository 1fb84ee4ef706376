package waker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/topology"
)

// Under the broker's memory alarm nothing hangs, everything is reported, and it goes on
// by itself afterwards on the same connection.
func TestAlarm(t *testing.T) {
	alarm := testenv.Alarm(t)
	service := testenv.Service(t)
	testenv.DeclareTopology(t, service, topology.Classic)
	conn := connect(t, amqpconn.Config{})
	w, f := start(t, Config{Conn: conn, Service: service, Window: 200, Patience: 500 * time.Millisecond, ConfirmTimeout: 2 * time.Second})
	works(t, w)

	alarm(true)
	// What is on its way when the alarm comes is not confirmed.
	const n = 5000
	begin := time.Now()
	w.Enqueue(wakes(1, n)...)
	testenv.Eventually(t, long, func() bool { return conn.State().Blocked != "" }, "the connection is blocked")
	ok, err := w.Publish(within(t, long), wakes(n+1, 10))
	if count(ok) != 0 || !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "low on memory") {
		t.Errorf("%v: %v", ok, err)
	}
	if err := w.Flush(within(t, long)); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, long, func() bool { return f.count() == n }, "all are reported")
	f.once(t)
	t.Logf("all reported after %v", time.Since(begin).Round(time.Millisecond))

	// Another one, closed in the middle of it.
	w2, f2 := start(t, Config{Conn: connect(t, amqpconn.Config{}), Service: service})
	w2.Enqueue(wakes(1, n)...)
	closeWithin(t, w2, time.Second, 5*time.Second)
	if f2.count() != n {
		t.Errorf("%d of %d were reported when Close returned", f2.count(), n)
	}

	alarm(false)
	works(t, w)
	if st := conn.State(); st.Generation != 1 || st.Blocked != "" {
		t.Errorf("%+v", st)
	}
}
