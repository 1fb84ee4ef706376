package persistence_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
)

// proxy stands between a store and the server and does what networks do.
type proxy struct {
	t      *testing.T
	server string
	ln     net.Listener
	wg     sync.WaitGroup // the goroutines; they end when close closes what they read

	mu     sync.Mutex
	thaw   chan struct{} // not nil while frozen; closed to go on
	cut    bool          // the next answer is dropped, and its connection with it
	cuts   int
	conns  map[net.Conn]bool
	closed bool
}

// newProxy returns a proxy of the test server and the DSN that leads through it.
func newProxy(t *testing.T) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(storetest.DSN(t))
	if err != nil {
		t.Fatalf("SPILLWAY_POSTGRES_DSN must be a URL here: %v", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, server: u.Host, ln: ln, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	u.Host = ln.Addr().String()
	return p, u.String()
}

// store opens a store with one connection through the proxy, and connects it.
func (p *proxy) store(dsn, schema string) *persistence.Postgres {
	p.t.Helper()
	s := storetest.OpenConfig(p.t, persistence.Config{DSN: dsn, Schema: schema, MaxConns: 1})
	if err := s.Ping(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil || !p.keep(client, server) {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		p.wg.Go(func() { p.copy(server, client, false) })
		p.wg.Go(func() { p.copy(client, server, true) })
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

func (p *proxy) copy(to, from net.Conn, answers bool) {
	defer func() {
		_, _ = to.Close(), from.Close()
		p.mu.Lock()
		delete(p.conns, to)
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		thaw, cut := p.thaw, answers && p.cut && n > 0
		if cut {
			p.cut = false
			p.cuts++
		}
		p.mu.Unlock()
		if thaw != nil {
			<-thaw
		}
		if cut {
			return
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

// cutNext drops the connection when the server's next answer comes. Postgres sends the
// answer to an autocommit statement after its commit, so what was asked for was
// done, and the client will never know.
func (p *proxy) cutNext() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
}

// wasCut reports how many answers were dropped so far.
func (p *proxy) wasCut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thaw = make(chan struct{})
}

func (p *proxy) unfreeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thaw != nil {
		close(p.thaw)
		p.thaw = nil
	}
}

func (p *proxy) close() {
	p.unfreeze()
	_ = p.ln.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
