package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// link is the way of one process to one server, through a proxy of toxiproxy, in process. Faults of one link come one after
// the other.
type link struct {
	mu    sync.Mutex
	proxy *toxiproxy.Proxy
	last  int // numbers the toxics
}

// newLinks makes a link for each slot and peer, named "slot/peer". upstream gives each peer's host:port.
func newLinks(upstream map[string]string) (map[string]*link, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	links := map[string]*link{}
	for _, slot := range slots() {
		for _, peer := range peers() {
			l, err := newLink(server, slot+"/"+peer, upstream[peer])
			if err != nil {
				return links, err
			}
			links[slot+"/"+peer] = l
		}
	}
	return links, nil
}

func newLink(server *toxiproxy.ApiServer, name, upstream string) (*link, error) {
	var last error
	for range 100 {
		// Below the ports that the kernel hands out by itself, so that nobody gets ours while it is closed.
		p := toxiproxy.NewProxy(server, name, fmt.Sprintf("127.0.0.1:%d", 10000+rand.N(10000)), upstream)
		if last = p.Start(); last == nil {
			return &link{proxy: p}, nil
		}
	}
	return nil, fmt.Errorf("start the proxy of %s: %w", name, last)
}

// through returns a server's URL with the link's address in the place of host and port.
func (l *link) through(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", errors.New("a server's url cannot be parsed")
	}
	u.Host = l.proxy.Listen
	return u.String(), nil
}

// cut closes all connections, and refuses new ones for d.
func (l *link) cut(ctx context.Context, d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Stop()
	wait(ctx, d)
	// Whatever ctx says: the processes need their links to end in order.
	var err error
	for range 50 {
		if err = l.proxy.Start(); err == nil {
			return nil
		}
		wait(context.WithoutCancel(ctx), 100*time.Millisecond)
	}
	return fmt.Errorf("start the proxy of %s again: %w", l.proxy.Name, err)
}

// spoil puts toxics on both streams, or one, for d.
func (l *link) spoil(ctx context.Context, d time.Duration, kind, attributes string, streams ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for _, s := range streams {
		l.last++
		name := fmt.Sprintf("%s-%d", kind, l.last)
		_, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"attributes":%s}`, name, kind, s, attributes)))
		if err != nil {
			return fmt.Errorf("%s: add toxic %s: %w", l.proxy.Name, kind, err)
		}
		names = append(names, name)
	}
	wait(ctx, d)
	for _, name := range names {
		if err := l.proxy.Toxics.RemoveToxic(context.WithoutCancel(ctx), name); err != nil {
			return fmt.Errorf("%s: remove toxic %s: %w", l.proxy.Name, kind, err)
		}
	}
	return nil
}

// freeze keeps what is sent back for d and then passes it on. The toxic is a latency that nobody lives to see: what
// toxiproxy calls a timeout would drop the bytes.
func (l *link) freeze(ctx context.Context, d time.Duration) error {
	return l.spoil(ctx, d, "latency", `{"latency":3600000}`, "upstream", "downstream")
}

func (l *link) delay(ctx context.Context, d time.Duration) error {
	return l.spoil(ctx, d, "latency", `{"latency":150,"jitter":100}`, "upstream", "downstream")
}

// loseReplies drops what the server says and closes the connections after d: requests arrive, answers do not.
func (l *link) loseReplies(ctx context.Context, d time.Duration) error {
	return l.spoil(ctx, d, "timeout", `{"timeout":0}`, "downstream") // taking it off closes what it was on
}

// hostPort of a server's URL, with its usual port.
func hostPort(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" {
		return "", errors.New("a server's address must be a URL with a host here, so that it can be led through a proxy")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"amqp": "5672", "postgres": "5432", "postgresql": "5432"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}
