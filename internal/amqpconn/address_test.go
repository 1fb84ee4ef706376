package amqpconn_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/retry"
)

func TestParseURL(t *testing.T) {
	for raw, want := range map[string][]string{
		"amqp://h": {"amqp://h"},
		"amqps://u:p@a:1,b,[::1]:3/v?heartbeat=5": {"amqps://u:p@a:1/v?heartbeat=5", "amqps://u:p@b/v?heartbeat=5", "amqps://u:p@[::1]:3/v?heartbeat=5"},
		"amqp://u:p,q@a,b":                        {"amqp://u:p,q@a", "amqp://u:p,q@b"},
	} {
		if got, err := amqpconn.ParseURL(raw); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", raw, got, err)
		}
	}
	for raw, says := range map[string]string{
		"amqp://u:hunter2@a,":                             "both sides of each comma",
		"amqp://u:hunter2@a,a:5672/":                      "not a:5672 twice",
		"amqp://u:hunter2@a:x,b":                          "like amqp://",
		"amqp://u:hunter2@a,amqp://u:hunter2@b":           "like amqp://",
		"amqps://u:hunter2@a/?cacert=/ca.pem":             `without "cacert"`,
		"amqp://u:hunter2@a/?cacertfile=/ca.pem":          "amqps://",
		"amqps://u:hunter2@a/?certfile=/c.pem":            "certfile and keyfile",
		"amqps://u:hunter2@a/?auth_mechanism=guess":       `not "guess"`,
		"amqps://u:hunter2@a/?cacertfile=/no/such/ca.pem": "",
	} {
		_, err := amqpconn.ParseURL(raw)
		if says == "" { // the files are New's
			c, newErr := amqpconn.New(amqpconn.Config{URL: raw})
			if c != nil {
				t.Errorf("%s: started", raw)
			}
			err, says = newErr, "no such file"
		}
		var fe *retry.FieldError
		if !errors.As(err, &fe) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %s", raw, err, says)
		}
	}
}

// Two nodes, one of them away: it costs one dial, not one at each loss.
func TestFailover(t *testing.T) {
	a, b := testenv.NewProxy(t, testenv.AMQPURL(t)), testenv.NewProxy(t, testenv.AMQPURL(t))
	url := strings.Replace(a.URL(testenv.AMQPURL(t)), a.Addr(), a.Addr()+","+b.Addr(), 1)
	c := open(t, amqpconn.Config{URL: url})
	works(t, session(t, c))
	for _, p := range []*testenv.Proxy{a, b, a} {
		other := a
		if p == a {
			other = b
		}
		other.Accept()
		p.Refuse()
		p.Cut()
		testenv.Eventually(t, 10*time.Second, func() bool { st := c.State(); return st.Connected && st.Address == other.Addr() }, "it moves to the other node")
		works(t, session(t, c))
	}
	if st := c.State(); st.Reconnects != st.Generation-1 || st.Failures != 0 {
		t.Errorf("%+v", st)
	}
	// With both away there is a pause after each round, and what failed is tried again.
	b.Refuse()
	b.Cut()
	testenv.Eventually(t, 10*time.Second, func() bool { return c.State().Failures >= 4 }, "dials fail")
	a.Accept()
	works(t, session(t, c))
	if got := c.State().Address; got != a.Addr() {
		t.Error(got)
	}
}

// The order is each process' own, so that a fleet spreads over the nodes.
func TestSpreadOverNodes(t *testing.T) {
	a, b := testenv.NewProxy(t, testenv.AMQPURL(t)), testenv.NewProxy(t, testenv.AMQPURL(t))
	url := strings.Replace(a.URL(testenv.AMQPURL(t)), a.Addr(), a.Addr()+","+b.Addr(), 1)
	for range 50 {
		session(t, open(t, amqpconn.Config{URL: url}))
	}
	t.Logf("50 connections: %d and %d", a.Accepted(), b.Accepted())
	if n := a.Accepted(); n < 8 || n > 42 { // 1 in 10^6
		t.Errorf("%d of 50 are at the first node", n)
	}
}

// 50 processes lose a broker that is there again at once, as behind a balancer that moved.
func TestNoStorm(t *testing.T) {
	const n = 50
	p := testenv.NewProxy(t, testenv.AMQPURL(t))
	var list []*amqpconn.Conn
	for range n {
		list = append(list, open(t, amqpconn.Config{URL: p.URL(testenv.AMQPURL(t))}))
	}
	for _, c := range list {
		session(t, c)
	}
	cut := time.Now()
	p.Cut()
	var after []time.Duration
	for _, c := range list {
		testenv.Eventually(t, 20*time.Second, func() bool { st := c.State(); return st.Connected && st.Generation == 2 }, "it comes back")
		after = append(after, c.State().Since.Sub(cut))
	}
	slices.Sort(after)
	most := 0 // within 50 ms
	for i := range after {
		k := i
		for k < n && after[k]-after[i] < 50*time.Millisecond {
			k++
		}
		most = max(most, k-i)
	}
	t.Logf("back after %v (first), %v (median), %v (last); at most %d within 50 ms", after[0], after[n/2], after[n-1], most)
	if most > n/2 || p.Accepted() != 2*n {
		t.Errorf("%d within 50 ms, %d connections", most, p.Accepted())
	}
}
