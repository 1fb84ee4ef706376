package testenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Proxy stands on a loopback port between a client and a server and can fail on
// purpose. Its methods may be called concurrently.
//
// Each connection has a goroutine for each of its two directions; they end when
// either side is gone. The accepting goroutine ends with its listener. All end
// before the test does.
type Proxy struct {
	t      testing.TB
	target string
	addr   string
	ctx    context.Context // ended when the test ends
	wg     sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	open     map[net.Conn]struct{}
	accepted int
	requests gate // client to server
	replies  gate // server to client
}

// A gate is nil while open; while shut it is a channel that opening closes.
type gate chan struct{}

// NewProxy starts a proxy to target, a host:port or a URL with a port. It passes
// everything until told otherwise, and stops when the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	if strings.Contains(target, "://") {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal("proxy: the server's url cannot be parsed")
		}
		target = u.Host
	}
	if _, _, err := net.SplitHostPort(target); err != nil {
		t.Fatalf("proxy: target %q: %v", target, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{t: t, target: target, ctx: ctx, open: map[net.Conn]struct{}{}}
	t.Cleanup(func() {
		cancel()
		p.Refuse()
		p.Cut()
		p.wg.Wait()
	})
	// Below the ports that the kernel hands out by itself, so that nobody gets
	// ours while we refuse.
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.N(10000)))
		if err == nil {
			p.addr = l.Addr().String()
			p.serve(l)
			return p
		}
	}
	t.Fatal("proxy: no free port")
	return nil
}

// ProxyURL starts a proxy to the server of a URL and returns it with the URL that
// goes through it.
func ProxyURL(t testing.TB, server string) (*Proxy, string) {
	t.Helper()
	p := NewProxy(t, server)
	return p, p.URL(server)
}

// Addr is host:port of the proxy. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// URL returns a server's URL with the proxy's address in the place of host and port.
func (p *Proxy) URL(server string) string {
	p.t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		p.t.Fatal("proxy: the server's url cannot be parsed")
	}
	u.Host = p.addr
	return u.String()
}

// Cut resets all connections. New ones are still accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		reset(c)
	}
}

// Freeze stops all bytes both ways, as a broken network does. Connections stay
// open, new ones are accepted and stay silent. Bytes are kept for Thaw.
func (p *Proxy) Freeze() { p.shut(true, true) }

// FreezeReplies stops what the server sends: it gets everything, and the client
// does not learn what became of it.
func (p *Proxy) FreezeReplies() { p.shut(false, true) }

func (p *Proxy) shut(requests, replies bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if requests && p.requests == nil {
		p.requests = make(gate)
	}
	if replies && p.replies == nil {
		p.replies = make(gate)
	}
}

// Thaw undoes Freeze and FreezeReplies.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range []*gate{&p.requests, &p.replies} {
		if *g != nil {
			close(*g)
			*g = nil
		}
	}
}

// Refuse refuses new connections, as a host without the server does. Those that
// are open stay: Cut them too for a server that is gone.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Accept undoes Refuse.
func (p *Proxy) Accept() {
	p.t.Helper()
	p.mu.Lock()
	refused := p.listener == nil
	p.mu.Unlock()
	if !refused {
		return
	}
	var l net.Listener
	Eventually(p.t, 10*time.Second, func() bool {
		var err error
		l, err = net.Listen("tcp", p.addr)
		return err == nil
	}, "the proxy listens again on "+p.addr)
	p.serve(l)
}

// Accepted counts the connections so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Connections is how many are open now.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open) / 2
}

func (p *Proxy) serve(l net.Listener) {
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if errors.Is(err, syscall.ECONNABORTED) {
				continue
			}
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					p.t.Errorf("proxy: accept: %v", err)
				}
				return
			}
			p.wg.Go(func() { p.connect(client) })
		}
	})
}

func (p *Proxy) connect(client net.Conn) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	server, err := dialer.DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	p.mu.Lock()
	p.accepted++
	p.open[client], p.open[server] = struct{}{}, struct{}{}
	if p.ctx.Err() != nil { // the Cut of the test's end may have come before
		reset(client)
		reset(server)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { p.forward(server, client, &p.requests) })
	wg.Go(func() { p.forward(client, server, &p.replies) })
	wg.Wait()
	p.mu.Lock()
	delete(p.open, client)
	delete(p.open, server)
	p.mu.Unlock()
}

// forward moves bytes until either side is gone, and closes both.
func (p *Proxy) forward(to, from net.Conn, g *gate) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		for shut := p.now(g); shut != nil; shut = p.now(g) {
			select {
			case <-shut:
			case <-p.ctx.Done():
				return
			}
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) now(g *gate) gate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *g
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
