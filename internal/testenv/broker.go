package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/topology"
)

// AMQP returns a connection to the test broker that is closed when the test ends.
func AMQP(t testing.TB) *amqp.Connection {
	t.Helper()
	conn, err := dial(AMQPURL(t))
	if err != nil {
		t.Fatalf("connect to the test broker: %v", err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) })
	return conn
}

func dial(url string) (*amqp.Connection, error) {
	return amqp.DialConfig(url, amqp.Config{Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(10 * time.Second)})
}

// DeclareTopology declares the topology of service and deletes it, with all
// messages, when the test ends. Without a kind the queues are quorum queues;
// classic ones are quicker to declare.
func DeclareTopology(t testing.TB, service string, kind ...topology.QueueKind) topology.Config {
	t.Helper()
	cfg := topology.Config{Service: service}
	if len(kind) > 0 {
		cfg.Kind = kind[0]
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	url := AMQPURL(t)
	conn := AMQP(t)
	t.Cleanup(func() {
		// On a connection of its own: the test may have had the other one closed.
		conn, err := dial(url)
		if err != nil {
			t.Errorf("connect to delete the topology of %s: %v", service, err)
			return
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) }()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // t's context is over in a cleanup
		defer cancel()
		if err := topology.Delete(ctx, conn, cfg); err != nil {
			t.Errorf("delete the topology of %s: %v", service, err)
		}
	})
	if err := topology.Declare(ctx, conn, cfg); err != nil {
		t.Fatalf("declare the topology of %s: %v", service, err)
	}
	return cfg
}

// CloseConnections has the broker close the connections whose client gave this
// name, and returns how many there were. It sees a new connection a moment late:
// call it until it returns what is expected.
func CloseConnections(t testing.TB, name string) int {
	t.Helper()
	base := ManagementURL(t)
	var list []struct {
		Name             string `json:"name"`
		ClientProperties struct {
			ConnectionName string `json:"connection_name"`
		} `json:"client_properties"`
	}
	res := management(t, http.MethodGet, base+"/api/connections")
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		t.Fatalf("list connections: %s: %v", res.Status, err)
	}
	n := 0
	for _, c := range list {
		if c.ClientProperties.ConnectionName != name {
			continue
		}
		res := management(t, http.MethodDelete, base+"/api/connections/"+url.PathEscape(c.Name))
		_ = res.Body.Close()
		if res.StatusCode == http.StatusNoContent {
			n++
		}
	}
	return n
}

func management(t testing.TB, method, url string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true // an idle connection would be a leak to goleak
	req.Header.Set("X-Reason", "test")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("management api: %v", err)
	}
	return res
}

// User makes a user of the broker with these permissions in the virtual host of server, and
// returns server's URL with it. The user is gone when the test ends.
func User(t testing.TB, server, configure, write, read string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal("the server's url cannot be parsed")
	}
	vhost := "/"
	if len(u.Path) > 1 {
		vhost = u.Path[1:]
	}
	name := Service(t)
	base := ManagementURL(t)
	put := func(path string, body any) {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, base+path, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("management api: %v", err)
		}
		_ = res.Body.Close()
		if res.StatusCode >= 300 {
			t.Fatalf("management api: PUT %s: %s", path, res.Status)
		}
	}
	put("/api/users/"+name, map[string]string{"password": "restricted", "tags": ""})
	t.Cleanup(func() {
		req, err := http.NewRequest(http.MethodDelete, base+"/api/users/"+name, nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("management api: %v", err)
			return
		}
		_ = res.Body.Close()
	})
	put("/api/permissions/"+url.PathEscape(vhost)+"/"+name, map[string]string{"configure": configure, "write": write, "read": read})
	u.User = url.UserPassword(name, "restricted")
	return u.String()
}
