package topology_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// topicMatch is AMQP's topic matching: * is one word, # is any number.
func topicMatch(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return topicMatch(pattern[1:], key) || len(key) > 0 && topicMatch(pattern, key[1:])
	case len(key) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == key[0]) && topicMatch(pattern[1:], key[1:])
}

type walker struct {
	plan    topology.Plan
	byName  map[string]topology.Queue
	typeOf  map[string]string
	binding map[string][]walkBinding
}

type walkBinding struct {
	topology.Binding
	words []string
}

func newWalker(t testing.TB, cfg topology.Config) *walker {
	t.Helper()
	plan, err := topology.NewPlan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &walker{plan: plan, byName: map[string]topology.Queue{}, typeOf: map[string]string{}, binding: map[string][]walkBinding{}}
	for _, q := range plan.Queues {
		w.byName[q.Name] = q
	}
	for _, e := range plan.Exchanges {
		w.typeOf[e.Name] = e.Type
	}
	for _, b := range plan.Bindings {
		w.binding[b.Source] = append(w.binding[b.Source], walkBinding{b, strings.Split(b.Key, ".")})
	}
	return w
}

// walk follows key from exchange to the queue in which it stays, and returns
// the sum of the TTLs and the number of queues that it waited in.
func (w *walker) walk(exchange, key string) (end string, waited time.Duration, hops int, err error) {
	words := strings.Split(key, ".")
	for range 40 {
		var match []topology.Binding
		for _, b := range w.binding[exchange] {
			if w.typeOf[exchange] == "fanout" || topicMatch(b.words, words) {
				match = append(match, b.Binding)
			}
		}
		if len(match) != 1 {
			return "", waited, hops, fmt.Errorf("%d bindings match %s at %s: %v", len(match), key, exchange, match)
		}
		if match[0].DestinationKind == topology.KindExchange {
			exchange = match[0].Destination
			continue
		}
		q := w.byName[match[0].Destination]
		ttl, ok := q.Arguments["x-message-ttl"].(int64)
		if !ok {
			return q.Name, waited, hops, nil
		}
		waited += time.Duration(ttl) * time.Millisecond
		hops++
		exchange = q.Arguments["x-dead-letter-exchange"].(string)
	}
	return "", waited, hops, errors.New("does not end")
}

func TestAllKeysAddUp(t *testing.T) {
	for _, kind := range []topology.QueueKind{topology.Quorum, topology.Classic} {
		w := newWalker(t, topology.Config{Service: "orders", Kind: kind})
		names := topology.NamesOf("orders")
		for units := range 1 << topology.Levels {
			delay := time.Duration(units) * topology.Unit
			key, ok := topology.Key("orders", delay)
			if !ok {
				t.Fatalf("no key for %v", delay)
			}
			end, waited, hops, err := w.walk(names.Delay(), key)
			if err != nil {
				t.Fatalf("%d units: %v", units, err)
			}
			if end != names.Ready() || waited != delay || hops != bits.OnesCount(uint(units)) {
				t.Fatalf("%d units, key %s: ends in %s after %v in %d hops", units, key, end, waited, hops)
			}
		}
	}
}

// A key of another service, or no key of ours, matches nowhere in the tiers:
// the publisher gets it back.
func TestStrangeKeysMatchNowhere(t *testing.T) {
	w := newWalker(t, topology.Config{Service: "orders"})
	good, _ := topology.Key("orders", time.Second)
	other, _ := topology.Key("orders-2", time.Second)
	for _, key := range []string{"", "orders", other, good + ".x", "0." + good, good[2:], strings.Replace(good, "1", "2", 1)} {
		if end, _, _, err := w.walk(topology.NamesOf("orders").Delay(), key); err == nil {
			t.Errorf("%q reaches %s", key, end)
		}
	}
}

func TestGridTakesFewHops(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(topology.Horizon)).Draw(t, "delay"))
		up := topology.Grid().Up(d)
		if up < d || up > topology.Horizon {
			t.Fatalf("%v rounded to %v", d, up)
		}
		key, ok := topology.Key("orders", up)
		if !ok {
			t.Fatalf("%v has no key", up)
		}
		hops := strings.Count(key, "1")
		if limit := topology.Horizon - 51100*time.Millisecond; d <= limit && hops > topology.SignificantBits {
			t.Fatalf("%v takes %d hops", up, hops)
		}
		if extra := up - d; float64(extra) >= float64(d)*0.0625+float64(topology.Unit) {
			t.Fatalf("%v rounded to %v", d, up)
		}
	})
}

func TestKeyEdges(t *testing.T) {
	const zero = "0.0.0.0.0.0.0.0.0.0.0.0.0.0.orders"
	const one = "0.0.0.0.0.0.0.0.0.0.0.0.0.1.orders"
	for _, c := range []struct {
		delay time.Duration
		key   string
		ok    bool
	}{
		{-time.Hour, zero, true},
		{0, zero, true},
		{1, one, true},
		{topology.Unit, one, true},
		{topology.Unit + 1, "0.0.0.0.0.0.0.0.0.0.0.0.1.0.orders", true},
		{time.Second, "0.0.0.0.0.0.0.0.0.0.1.0.1.0.orders", true},
		{topology.Horizon - topology.Unit + 1, "1.1.1.1.1.1.1.1.1.1.1.1.1.1.orders", true},
		{topology.Horizon, "1.1.1.1.1.1.1.1.1.1.1.1.1.1.orders", true},
		{topology.Horizon + 1, "", false},
		{60 * 24 * time.Hour, "", false},
		{1<<63 - 1, "", false},
	} {
		if key, ok := topology.Key("orders", c.delay); key != c.key || ok != c.ok {
			t.Errorf("Key(%v) = %q, %v", c.delay, key, ok)
		}
	}
}

func TestNames(t *testing.T) {
	n := topology.NamesOf("orders")
	want := map[string]string{
		n.Delay(): "spillway.v1.orders.delay", n.Due(): "spillway.v1.orders.due", n.Ready(): "spillway.v1.orders.ready",
		n.Submit(): "spillway.v1.orders.submit", n.Dead(): "spillway.v1.orders.dead", n.Parked(): "spillway.v1.orders.parked",
		n.Unrouted(): "spillway.v1.orders.unrouted",
		n.Level(0):   "spillway.v1.orders.delay.00-100ms", n.Level(3): "spillway.v1.orders.delay.03-800ms",
		n.Level(4): "spillway.v1.orders.delay.04-1.6s", n.Level(13): "spillway.v1.orders.delay.13-819.2s",
	}
	for got, w := range want {
		if got != w {
			t.Errorf("%s, want %s", got, w)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  topology.Config
		want string // in the error; empty: valid
	}{
		{topology.Config{Service: "orders"}, ""},
		{topology.Config{Service: "orders", Kind: topology.Classic, Mode: topology.ModeTiers}, ""},
		{topology.Config{}, "service"},
		{topology.Config{Service: "Orders"}, "service"},
		{topology.Config{Service: "a.b"}, "service"},
		{topology.Config{Service: strings.Repeat("a", 64)}, "service"},
		{topology.Config{Service: "orders", Kind: "stream"}, "quorum or classic"},
		{topology.Config{Service: "orders", Mode: topology.ModePlugin}, "not in this version"},
		{topology.Config{Service: "orders", Mode: topology.ModeAuto}, "not in this version"},
		{topology.Config{Service: "orders", Mode: "ttl"}, "tiers"},
	} {
		_, err := topology.NewPlan(c.cfg)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.cfg, err)
		case c.want != "" && (!errors.Is(err, retry.ErrInvalid) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v, want %s", c.cfg, err, c.want)
		}
	}
}

func TestPlanShape(t *testing.T) {
	plan, err := topology.NewPlan(topology.Config{Service: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if e, q, b := len(plan.Exchanges), len(plan.Queues), len(plan.Bindings); e != 19 || q != 18 || b != 124 {
		t.Errorf("%d exchanges, %d queues, %d bindings", e, q, b)
	}
	names := topology.NamesOf("orders")
	alternate := map[string]bool{}
	for _, e := range plan.Exchanges {
		_, alternate[e.Name] = e.Arguments["alternate-exchange"]
	}
	for _, name := range []string{names.Delay(), names.Submit(), names.Unrouted()} {
		if alternate[name] {
			t.Errorf("%s has an alternate exchange: the mandatory flag would return nothing", name)
		}
	}
	for _, name := range []string{names.Due(), names.Dead(), names.Level(0), names.Level(13)} {
		if !alternate[name] {
			t.Errorf("%s has no alternate exchange: an unroutable dead letter would block a queue", name)
		}
	}
	for _, q := range plan.Queues {
		_, dead := q.Arguments["x-dead-letter-exchange"]
		if atLeastOnce := q.Arguments["x-dead-letter-strategy"] == "at-least-once"; atLeastOnce != dead ||
			atLeastOnce != (q.Arguments["x-overflow"] == "reject-publish") {
			t.Errorf("%s: %v", q.Name, q.Arguments)
		}
		// Where people look, and nowhere else. -1 would be no limit from RabbitMQ 4.0 on, and lose what is put back before.
		limit, limited := q.Arguments["x-delivery-limit"]
		if looked := q.Name == names.Parked() || q.Name == names.Unrouted(); limited != looked || limited && limit.(int64) < 1_000_000 {
			t.Errorf("%s: %v", q.Name, q.Arguments)
		}
		if _, ok := q.Arguments["x-expires"]; ok {
			t.Errorf("%s expires", q.Name)
		}
	}
	classic, _ := topology.NewPlan(topology.Config{Service: "orders", Kind: topology.Classic})
	for _, q := range classic.Queues {
		for _, arg := range []string{"x-dead-letter-strategy", "x-overflow", "x-delivery-limit"} {
			if _, ok := q.Arguments[arg]; ok {
				t.Errorf("classic %s has %s", q.Name, arg)
			}
		}
	}
}

func TestPlanText(t *testing.T) {
	plan, _ := topology.NewPlan(topology.Config{Service: "orders"})
	var b strings.Builder
	if err := plan.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, e := range plan.Exchanges {
		if !strings.Contains(b.String(), e.Name+" ") {
			t.Errorf("%s is missing", e.Name)
		}
	}
	for _, bind := range plan.Bindings {
		if !strings.Contains(b.String(), bind.Key) {
			t.Errorf("%s is missing", bind)
		}
	}
	if lines := strings.Count(b.String(), "\n"); lines != 2+2+19+2+18+2+124 {
		t.Errorf("%d lines", lines)
	}
	data, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var back topology.Plan
	if err := json.Unmarshal(data, &back); err != nil || len(back.Bindings) != 124 || back.Queues[0].Name != plan.Queues[0].Name {
		t.Errorf("%v: %s", err, data)
	}
}

func ExampleKey() {
	// Round up first: few hops, and what is recorded is what the broker does.
	delay := topology.Grid().Up(90*time.Second + 30*time.Millisecond)
	key, ok := topology.Key("orders", delay)
	fmt.Println(delay, key, ok)
	// Output: 1m32.8s 0.0.0.0.1.1.1.0.1.0.0.0.0.0.orders true
}
