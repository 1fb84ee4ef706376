package storetest

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/spillway-mq/spillway/persistence"
)

// Lossy is a proxy between a store and the test server. It loses answers on demand, and can fall
// silent. Its methods may be called concurrently.
type Lossy struct {
	t      testing.TB
	server string
	ln     net.Listener
	wg     sync.WaitGroup // the goroutines; they end when close closes what they read

	mu     sync.Mutex
	thaw   chan struct{} // not nil while frozen; closed to go on
	cut    int           // the answer at which the connection is dropped: 1 is the next, 0 none
	cuts   int
	conns  map[net.Conn]bool
	closed bool
}

// NewLossy starts a proxy of the test server and returns the DSN that leads through it. It ends with
// the test.
func NewLossy(t testing.TB) (*Lossy, string) {
	t.Helper()
	u, err := url.Parse(DSN(t))
	if err != nil {
		t.Fatalf("SPILLWAY_POSTGRES_DSN must be a URL here: %v", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Lossy{t: t, server: u.Host, ln: ln, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	u.Host = ln.Addr().String()
	return p, u.String()
}

// Store opens a store with one connection through the proxy, and connects it.
func (p *Lossy) Store(dsn, schema string) *persistence.Postgres {
	p.t.Helper()
	s := OpenConfig(p.t, persistence.Config{DSN: dsn, Schema: schema, MaxConns: 1})
	if err := s.Ping(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *Lossy) accept() {
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

func (p *Lossy) keep(conns ...net.Conn) bool {
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

func (p *Lossy) copy(to, from net.Conn, answers bool) {
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
		thaw, cut := p.thaw, false
		if answers && p.cut > 0 && n > 0 {
			if p.cut--; p.cut == 0 {
				cut = true
				p.cuts++
			}
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

// CutAt drops the connection when the server's n-th answer from now on comes; 0 takes that back.
// Postgres sends the answer to an autocommit statement after its commit, so what was asked for was
// done, and the client will never know.
func (p *Lossy) CutAt(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = n
}

// Cuts reports how many answers were dropped so far.
func (p *Lossy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Freeze stops all bytes both ways, until Thaw.
func (p *Lossy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thaw = make(chan struct{})
}

// Thaw lets the bytes go on.
func (p *Lossy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thaw != nil {
		close(p.thaw)
		p.thaw = nil
	}
}

func (p *Lossy) close() {
	p.Thaw()
	_ = p.ln.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
