package topology_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// api sends one request to the management API, path beginning after /api.
func api(t testing.TB, ctx context.Context, method, path string, body any) {
	t.Helper()
	u, err := url.Parse(env(t, "SPILLWAY_MANAGEMENT_URL"))
	if err != nil {
		t.Fatal(err)
	}
	data, _ := json.Marshal(body)
	req, err := http.NewRequestWithContext(ctx, method, u.Scheme+"://"+u.Host+"/api"+path, strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	req.SetBasicAuth(u.User.Username(), password)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // leave no idle connection to the leak check
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, path, resp.Status)
	}
}

// setPolicy sets a policy for the test. kind is policies or operator-policies.
func setPolicy(t testing.TB, conn *amqp.Connection, kind, name string, policy map[string]any) (remove func()) {
	t.Helper()
	path := "/" + kind + "/" + url.PathEscape(conn.Config.Vhost) + "/" + name
	api(t, t.Context(), http.MethodPut, path, policy)
	removed := false
	remove = func() {
		if !removed {
			removed = true
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			api(t, ctx, http.MethodDelete, path, nil)
		}
	}
	t.Cleanup(remove)
	return remove
}

func verify(t testing.TB, conn *amqp.Connection, managementURL string, cfg topology.Config) []topology.Difference {
	t.Helper()
	found, err := topology.Verify(testContext(t), conn, managementURL, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// wait polls until ok is true.
func wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("timed out: %s", what)
		}
	}
}

// expect checks that exactly these differences are found, by problem, name and
// property, and that each has a fix.
func expect(t *testing.T, found []topology.Difference, want ...topology.Difference) {
	t.Helper()
	same := len(found) == len(want)
	for i := 0; same && i < len(want); i++ {
		f, w := found[i], want[i]
		same = f.Problem == w.Problem && f.Name == w.Name && f.Property == w.Property &&
			(w.Want == "" || f.Want == w.Want) && (w.Got == "" || strings.Contains(f.Got, w.Got)) && f.Fix != "" && f.Severity != ""
	}
	if !same {
		t.Errorf("found %d:", len(found))
		for _, f := range found {
			t.Errorf("  %s", f)
		}
		t.Errorf("want %d: %+v", len(want), want)
		return
	}
	for _, f := range found {
		t.Log(f)
	}
}

var unseen = topology.Difference{Problem: topology.ProblemUnseen, Property: "bindings, policies and feature flags"}

// One topology is broken in every way, one after the other, and repaired as
// the fixes say.
func TestVerify(t *testing.T) {
	kinds(t, func(t *testing.T, kind topology.QueueKind) {
		conn := dial(t)
		cfg := declared(t, conn, kind)
		names := cfg.Names()
		ctx := testContext(t)
		management := env(t, "SPILLWAY_MANAGEMENT_URL")
		ch := channel(t, conn)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		repair := func() {
			t.Helper()
			must(topology.Declare(ctx, conn, cfg))
		}

		start := time.Now()
		expect(t, verify(t, conn, management, cfg))
		t.Logf("verified by management api in %v", time.Since(start).Round(time.Millisecond))
		start = time.Now()
		expect(t, verify(t, conn, "", cfg), unseen)
		t.Logf("verified by amqp in %v", time.Since(start).Round(time.Millisecond))

		// A binding is missing: only the management API can tell.
		plan, _ := topology.NewPlan(cfg)
		gone := plan.Bindings[50]
		must(ch.QueueUnbind(gone.Destination, gone.Key, gone.Source, nil))
		expect(t, verify(t, conn, management, cfg),
			topology.Difference{Problem: topology.ProblemMissing, Name: gone.String()})
		expect(t, verify(t, conn, "", cfg), unseen)
		repair()

		// Foreign bindings: out of due, with arguments, and into ready.
		must(ch.QueueBind(names.Parked(), "#", names.Due(), false, nil))
		must(ch.QueueBind(names.Ready(), "#."+cfg.Service, names.Due(), false, amqp.Table{"by": "hand"}))
		must(ch.QueueBind(names.Ready(), "wake", "amq.direct", false, nil))
		must(ch.QueueBind(names.Submit(), cfg.Service, "amq.direct", false, nil)) // allowed
		expect(t, verify(t, conn, management, cfg),
			topology.Difference{Problem: topology.ProblemExtra, Name: names.Due() + " -[#]-> queue " + names.Parked()},
			topology.Difference{Problem: topology.ProblemExtra, Name: names.Due() + " -[#." + cfg.Service + "]-> queue " + names.Ready() + " with arguments by=hand"},
			topology.Difference{Problem: topology.ProblemExtra, Name: "amq.direct -[wake]-> queue " + names.Ready()})
		must(ch.QueueUnbind(names.Parked(), "#", names.Due(), nil))
		must(ch.QueueUnbind(names.Ready(), "#."+cfg.Service, names.Due(), amqp.Table{"by": "hand"}))
		must(ch.QueueUnbind(names.Ready(), "wake", "amq.direct", nil))

		// A queue and an exchange are missing.
		_, err := ch.QueueDelete(names.Level(3), false, false, false)
		must(err)
		must(ch.ExchangeDelete(names.Due(), false, false))
		missing := []topology.Difference{
			{Problem: topology.ProblemMissing, Name: names.Due()},
			{Problem: topology.ProblemMissing, Name: names.Level(3)},
		}
		expect(t, verify(t, conn, management, cfg), missing...)
		expect(t, verify(t, conn, "", cfg), append(missing, unseen)...)
		if _, err := topology.Depth(ctx, conn, names.Level(3)); !errors.Is(err, topology.ErrMissing) {
			t.Errorf("depth of a missing queue: %v", err)
		}

		// In their places, others with wrong properties.
		args := amqp.Table{"x-queue-type": string(kind), "x-dead-letter-exchange": names.Level(3), "x-message-ttl": int32(1000)}
		if kind == topology.Quorum {
			args["x-dead-letter-strategy"], args["x-overflow"] = "at-least-once", "reject-publish"
		}
		_, err = ch.QueueDeclare(names.Level(3), true, false, false, false, args)
		must(err)
		must(ch.ExchangeDeclare(names.Due(), "fanout", true, false, false, false, amqp.Table{"alternate-exchange": names.Unrouted()}))
		wrong := []topology.Difference{
			{Problem: topology.ProblemProperty, Name: names.Due(), Property: "type", Want: "topic", Got: "fanout"},
			{Problem: topology.ProblemProperty, Name: names.Level(3), Property: "x-message-ttl", Want: "800", Got: "1000"},
		}
		expect(t, verify(t, conn, "", cfg), append(wrong, unseen)...)
		var properties []topology.Difference // besides the missing bindings of both
		for _, d := range verify(t, conn, management, cfg) {
			if d.Problem == topology.ProblemProperty {
				properties = append(properties, d)
			}
		}
		expect(t, properties, wrong...)

		// Declare refuses, says what differs, and leaves it.
		var mismatch *topology.MismatchError
		if err := topology.Declare(ctx, conn, cfg); !errors.As(err, &mismatch) || mismatch.Name != names.Due() ||
			mismatch.Property != "type" || mismatch.Want != "topic" || mismatch.Got != "fanout" {
			t.Errorf("declare over a wrong exchange: %v", err)
		}
		must(ch.ExchangeDelete(names.Due(), false, false))
		if err := topology.Declare(ctx, conn, cfg); !errors.As(err, &mismatch) || mismatch.Name != names.Level(3) ||
			mismatch.Property != "x-message-ttl" || mismatch.Want != "800" || mismatch.Got != "1000" {
			t.Errorf("declare over a wrong queue: %v", err)
		}
		t.Log(mismatch)
		other := topology.Config{Service: cfg.Service, Kind: topology.Classic}
		if kind == topology.Classic {
			other.Kind = topology.Quorum
		}
		if err := topology.Declare(ctx, conn, other); !errors.As(err, &mismatch) || mismatch.Property != "x-queue-type" ||
			!strings.Contains(mismatch.Fix, "set the queue kind to "+string(kind)) {
			t.Errorf("declare with the other kind: %v", err)
		}
		_, err = ch.QueueDelete(names.Level(3), false, false, false)
		must(err)
		repair()
		expect(t, verify(t, conn, management, cfg))

		// Policies. Tunables are the operators'.
		tunables := setPolicy(t, conn, "policies", cfg.Service, map[string]any{
			"pattern": "^" + strings.ReplaceAll(names.Ready(), ".", `\.`), "apply-to": "queues", "definition": map[string]any{"max-length": 100000},
		})
		hidden := setPolicy(t, conn, "policies", cfg.Service+"-low", map[string]any{ // has no effect below the next one
			"pattern": `^spillway\.v1\.` + cfg.Service + `\.`, "apply-to": "queues", "priority": -1, "definition": map[string]any{"expires": 1000000},
		})
		harmless := setPolicy(t, conn, "policies", cfg.Service+"-high", map[string]any{
			"pattern": `^spillway\.v1\.` + cfg.Service + `\.(delay\.|ready|submit)`, "apply-to": "queues", "priority": 0, "definition": map[string]any{"delivery-limit": 20},
		})
		danger := setPolicy(t, conn, "operator-policies", cfg.Service, map[string]any{
			"pattern": `^spillway\.v1\.` + cfg.Service + `\.delay\.1[23]`, "apply-to": "queues", "definition": map[string]any{"message-ttl": 5000},
		})
		alternate := setPolicy(t, conn, "policies", cfg.Service+"-ae", map[string]any{
			"pattern": `^spillway\.v1\.` + cfg.Service + `\.delay$`, "apply-to": "exchanges", "definition": map[string]any{"alternate-exchange": "amq.fanout"},
		})
		looks := setPolicy(t, conn, "policies", cfg.Service+"-looks", map[string]any{ // drops what was looked at too often
			"pattern": `^spillway\.v1\.` + cfg.Service + `\.(parked|unrouted)$`, "apply-to": "queues", "priority": 0, "definition": map[string]any{"delivery-limit": 20},
		})
		var limits []topology.Difference
		if kind == topology.Quorum {
			for _, name := range []string{names.Unrouted(), names.Parked()} {
				limits = append(limits, topology.Difference{Problem: topology.ProblemPolicy, Name: name, Property: "delivery-limit", Got: "20 by policy"})
			}
		}
		expect(t, verify(t, conn, management, cfg), append([]topology.Difference{
			{Problem: topology.ProblemPolicy, Name: names.Delay(), Property: "alternate-exchange", Got: "amq.fanout by policy"}},
			append(limits,
				topology.Difference{Problem: topology.ProblemPolicy, Name: names.Level(12), Property: "message-ttl", Got: "5000 by operator policy"},
				topology.Difference{Problem: topology.ProblemPolicy, Name: names.Level(13), Property: "message-ttl", Got: "5000 by operator policy"})...)...)
		tunables()
		hidden()
		harmless()
		looks()
		danger()
		alternate()
		expect(t, verify(t, conn, management, cfg))

		// A message in unrouted.
		publish(t, ch, names.Due(), "stray", "x")
		stray := topology.Difference{Problem: topology.ProblemMessages, Name: names.Unrouted(), Property: "messages", Want: "0", Got: "1"}
		wait(t, "the stray message shows", func() bool { return len(verify(t, conn, "", cfg)) == 2 })
		expect(t, verify(t, conn, "", cfg), unseen, stray)
		expect(t, verify(t, conn, management, cfg), stray)

		// Delete leaves nothing, and deleting nothing is fine.
		must(topology.Delete(ctx, conn, cfg))
		must(topology.Delete(ctx, conn, cfg))
		found := verify(t, conn, management, cfg)
		if len(found) != len(plan.Exchanges)+len(plan.Queues) {
			t.Errorf("%d differences after delete", len(found))
		}
		for _, d := range found {
			if d.Problem != topology.ProblemMissing {
				t.Errorf("after delete: %s", d)
			}
		}
	})
}

// An upgraded broker without its feature flags, and a user without the tags
// for all answers: played by a proxy before the real API.
func TestVerifySaysWhatItCannotSee(t *testing.T) {
	conn := dial(t)
	cfg := topology.Config{Service: "topology-never-declared"}
	target, err := url.Parse(env(t, "SPILLWAY_MANAGEMENT_URL"))
	if err != nil {
		t.Fatal(err)
	}
	status, flags := http.StatusOK, `[{"name":"stream_queue","state":"disabled"}]`
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host})
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/feature-flags") {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(flags))
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer server.Close()
	front, _ := url.Parse(server.URL)
	front.User = target.User

	first := func() topology.Difference { return verify(t, conn, front.String(), cfg)[0] }
	if d := first(); d.Problem != topology.ProblemBroker || d.Severity != topology.Broken {
		t.Errorf("disabled flag: %s", d)
	}
	status, flags = http.StatusUnauthorized, `{"error":"not_authorised"}`
	if d := first(); d.Problem != topology.ProblemUnseen || d.Severity != topology.Unchecked {
		t.Errorf("refused: %s", d)
	}
}

func TestVerifyRefusesBadAddresses(t *testing.T) {
	conn := dial(t)
	cfg := topology.Config{Service: "topology-never-declared"}
	good, err := url.Parse(env(t, "SPILLWAY_MANAGEMENT_URL"))
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"127.0.0.1:15672", "amqp://u:secret@host", "http://", "http://u:secret@h ost", "http://u:secret@host:port"} {
		_, err := topology.Verify(testContext(t), conn, address, cfg)
		if !errors.Is(err, retry.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, user := range []*url.Userinfo{nil, url.UserPassword("nobody", "secret")} {
		u := *good
		u.User = user
		_, err := topology.Verify(testContext(t), conn, u.String(), cfg)
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "management api") {
			t.Errorf("%v: %v", user, err)
		}
		t.Log(err)
	}
}

// A broker that takes the connection and then says nothing: every call returns
// with its context, and nothing stays behind once the connection is closed.
func TestSilentBroker(t *testing.T) {
	target, err := amqp.ParseURI(env(t, "SPILLWAY_AMQP_URL"))
	if err != nil {
		t.Fatal(err)
	}
	var wire *mutable
	conn, err := amqp.DialConfig(target.String(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		c, err := amqp.DefaultDial(10*time.Second)(network, addr)
		wire = &mutable{Conn: c, muted: make(chan struct{})}
		return wire, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(100 * time.Millisecond)) }()
	close(wire.muted)
	cfg := topology.Config{Service: "topology-never-declared"}
	for name, call := range map[string]func(context.Context) error{
		"declare": func(ctx context.Context) error { return topology.Declare(ctx, conn, cfg) },
		"delete":  func(ctx context.Context) error { return topology.Delete(ctx, conn, cfg) },
		"verify":  func(ctx context.Context) error { _, err := topology.Verify(ctx, conn, "", cfg); return err },
		"depth":   func(ctx context.Context) error { _, err := topology.Depth(ctx, conn, "x"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		} else {
			t.Log(err)
		}
		cancel()
	}
}

// mutable loses what is written once muted is closed.
type mutable struct {
	net.Conn
	muted chan struct{}
}

func (m *mutable) Write(p []byte) (int, error) {
	select {
	case <-m.muted:
		return len(p), nil
	default:
		return m.Conn.Write(p)
	}
}
