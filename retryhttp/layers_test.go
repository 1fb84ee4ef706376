package retryhttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/retryhttp"
	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const tries = 3

// layer is a service: a publisher with a store of its own, and an HTTP server that calls the layer below by Do.
type layer struct {
	t      *testing.T
	store  *persistence.Postgres
	pub    *publisher.Publisher
	client *http.Client
	below  string
	calls  atomic.Int64 // that its server got
	url    string
}

var scene = retry.Scene{
	Name: "call.down", Unknown: retry.UnknownRepeat, Classify: retry.ClassifyNet, Local: retry.Local{Retries: tries - 1, Pause: -1},
	Policy: retry.Policy{Kind: retry.Fixed, Base: 100 * time.Millisecond, MaxAttempts: tries, NoJitter: true},
}

// nowhere is a broker's address at which nothing listens: wake-ups matter only where a consumer runs.
const nowhere = "amqp://spillway:spillway@127.0.0.1:1/"

// newLayer calls below. aware: with Transport and Handler.
func newLayer(t *testing.T, below, broker string, aware bool) *layer {
	t.Helper()
	service := testenv.Service(t)
	l := &layer{t: t, store: storetest.OpenService(t, service), below: below}
	cfg := publisher.Config{
		Service: service, Store: l.store, AMQPURL: broker, Scenes: []retry.Scene{scene}, Logger: slog.New(slog.DiscardHandler),
	}
	var err error
	if l.pub, err = publisher.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.pub.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	var transport http.RoundTripper = http.DefaultTransport.(*http.Transport).Clone()
	var handler http.Handler = http.HandlerFunc(l.serve)
	if aware {
		transport, handler = &retryhttp.Transport{Base: transport}, retryhttp.Handler(handler, nil)
	}
	l.client = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	t.Cleanup(l.client.CloseIdleConnections)
	l.url = listen(t, handler)
	return l
}

func listen(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// ask sends one request to the layer below.
func (l *layer) ask(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.below, strings.NewReader("{}"))
	if err != nil {
		return retry.Permanent(err)
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _, _ = io.Copy(io.Discard, resp.Body); _ = resp.Body.Close() }()
	return retryhttp.Error(resp, true)
}

// do is what the layer does for its caller.
func (l *layer) do(ctx context.Context) error {
	return l.pub.Do(ctx, publisher.Task{Scene: scene.Name, Args: l.below}, l.ask)
}

func (l *layer) serve(w http.ResponseWriter, r *http.Request) {
	l.calls.Add(1)
	switch err := l.do(r.Context()); {
	case err == nil:
	case errors.Is(err, retry.ErrEscalated):
		// A layer that believes it is the outermost remembers, and its caller cannot know better than to fail.
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}

func (l *layer) tasks() int {
	l.t.Helper()
	list, err := l.store.List(l.t.Context(), persistence.Filter{})
	if err != nil {
		l.t.Fatal(err)
	}
	return len(list)
}

// down is a server that always fails, at the bottom.
func down(t *testing.T) (url string, calls *atomic.Int64) {
	calls = new(atomic.Int64)
	return listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		http.Error(w, "down", http.StatusServiceUnavailable)
	})), calls
}

// Three layers with three tries each, over real HTTP servers.
func TestThreeLayers(t *testing.T) {
	for name, tc := range map[string]struct {
		aware   bool
		between func(t *testing.T, below string) string // between the second layer and the third
		want    int64                                   // calls at the bottom
		stored  [3]int                                  // tasks that each layer remembers, outermost first
	}{
		"with retryhttp":    {aware: true, want: 3, stored: [3]int{1, 0, 0}},
		"without retryhttp": {want: 27, stored: [3]int{1, 3, 9}},
		"a reverse proxy between": {aware: true, want: 3, stored: [3]int{1, 0, 0}, between: func(t *testing.T, below string) string {
			u, err := url.Parse(below)
			if err != nil {
				t.Fatal(err)
			}
			transport := http.DefaultTransport.(*http.Transport).Clone()
			t.Cleanup(transport.CloseIdleConnections)
			return listen(t, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }, Transport: transport})
		}},
		"a service between that passes the headers on": {aware: true, want: 3, stored: [3]int{1, 0, 0}, between: plain(true)},
		"a service between that drops the headers":     {aware: true, want: 9, stored: [3]int{1, 0, 3}, between: plain(false)},
	} {
		t.Run(name, func(t *testing.T) {
			bottom, calls := down(t)
			third := newLayer(t, bottom, nowhere, tc.aware)
			next := third.url
			if tc.between != nil {
				next = tc.between(t, next)
			}
			second := newLayer(t, next, nowhere, tc.aware)
			first := newLayer(t, second.url, nowhere, tc.aware)
			if err := first.do(t.Context()); !errors.Is(err, retry.ErrEscalated) {
				t.Errorf("the outermost: %v, want it to be remembered", err)
			}
			stored := [3]int{first.tasks(), second.tasks(), third.tasks()}
			t.Logf("calls at layer 2: %d, layer 3: %d, bottom: %d; amplification %.1f × the outermost's %d tries; tasks stored %v",
				second.calls.Load(), third.calls.Load(), calls.Load(), float64(calls.Load())/tries, tries, stored)
			if calls.Load() != tc.want || stored != tc.stored {
				t.Errorf("%d calls at the bottom and %v tasks, want %d and %v", calls.Load(), stored, tc.want, tc.stored)
			}
		})
	}
}

// plain is a service that knows nothing of Spillway.
func plain(passOn bool) func(*testing.T, string) string {
	return func(t *testing.T, below string) string {
		client := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
		t.Cleanup(client.CloseIdleConnections)
		return listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, below, nil)
			if err != nil {
				t.Error(err)
				return
			}
			for name, values := range r.Header {
				if passOn && strings.HasPrefix(name, "Spillway-") {
					req.Header[name] = values
				}
			}
			resp, err := client.Do(req)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			w.WriteHeader(resp.StatusCode)
			_, _ = io.Copy(w, resp.Body)
		}))
	}
}

// The outermost layer is a consumer: each of its attempts sends one call down.
func TestLayersUnderAConsumer(t *testing.T) {
	bottom, calls := down(t)
	third := newLayer(t, bottom, nowhere, true)
	second := newLayer(t, third.url, nowhere, true)
	first := newLayer(t, second.url, testenv.AMQPURL(t), true)
	testenv.DeclareTopology(t, first.store.Service(), topology.Classic)
	c, err := consumer.New(consumer.Config{
		Service: first.store.Service(), Store: first.store, AMQPURL: testenv.AMQPURL(t), Kind: topology.Classic, Logger: slog.New(slog.DiscardHandler),
	}, consumer.Handle(scene, func(ctx context.Context, _ *consumer.Job[json.RawMessage]) error { return first.do(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }() // ends with ctx
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	in, err := first.pub.Enqueue(t.Context(), publisher.Task{Scene: scene.Name})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() bool {
		task, err := first.store.Get(t.Context(), in.ID)
		return err == nil && task.Status == retry.StatusFailed
	}, "the task's attempts are used")
	t.Logf("bottom: %d calls; amplification %.1f × %d attempts", calls.Load(), float64(calls.Load())/tries, tries)
	if calls.Load() != tries || second.tasks() != 0 || third.tasks() != 0 || first.tasks() != 1 {
		t.Errorf("%d calls, and %d, %d and %d tasks; want %d calls and one task", calls.Load(), first.tasks(), second.tasks(), third.tasks(), tries)
	}
}
