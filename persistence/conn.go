package persistence

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/lib/pq"
)

// cancelGrace is how long a statement whose context has ended may take to say so. lib/pq
// asks the server to cancel it and reads on; a frozen server never answers.
const cancelGrace = time.Second

// connector makes lib/pq's connections and keeps hold of the network connection
// under each, so that a context can end a read.
type connector struct{ *pq.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	d := &dialed{ctx: ctx}
	pc, err := c.Connector.Connect(context.WithValue(ctx, dialedKey{}, d))
	if err != nil {
		return nil, err
	}
	full, ok := pc.(pqConn)
	if !ok || d.conn == nil {
		_ = pc.Close()
		return nil, fmt.Errorf("lib/pq's connection is %T, which lacks what is needed of it", pc)
	}
	d.conn.free()
	return &boundConn{pqConn: full, net: d.conn}, nil
}

// dialed receives what the dialer made for one Connect.
type dialed struct {
	ctx  context.Context // Connect's: the one that the dialer gets ends with the dial
	conn *impatientConn
}

type dialedKey struct{}

// dialer makes connections on which every read and write has a deadline. lib/pq
// has none of its own: on a frozen network it would wait for ever.
type dialer struct{ silence time.Duration }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	nd := net.Dialer{KeepAlive: 15 * time.Second}
	c, err := nd.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	ic := &impatientConn{Conn: c, silence: d.silence}
	if got, ok := ctx.Value(dialedKey{}).(*dialed); ok {
		if got.conn != nil {
			// lib/pq tries again without TLS and forgets the first connection.
			_ = got.conn.Close()
		}
		got.conn = ic
		ic.bind(got.ctx)
	} else {
		// A request to cancel a statement; nobody waits for its end.
		ic.silence = cancelGrace
	}
	return ic, nil
}

// impatientConn bounds every read and write by the silence, by the deadline that lib/pq
// sets while it connects, and by the context of the statement that runs.
type impatientConn struct {
	net.Conn
	silence time.Duration // zero: no bound

	mu     sync.Mutex
	limit  time.Time
	broken bool            // a read failed: what the server has said since is lost
	ctx    context.Context // of the statement that runs or ran last; nil for none
	unbind func() bool     // takes the watch on ctx off; nil for none
}

// SetDeadline is lib/pq's, for the time of connecting.
func (c *impatientConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = t
	return c.Conn.SetDeadline(t)
}

func (c *impatientConn) Read(p []byte) (int, error) {
	if err := c.arm(c.Conn.SetReadDeadline); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.broken = true
	}
	return n, err
}

func (c *impatientConn) isBroken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

func (c *impatientConn) Write(p []byte) (int, error) {
	if err := c.arm(c.Conn.SetWriteDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *impatientConn) arm(set func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var t time.Time
	if c.silence > 0 {
		t = time.Now().Add(c.silence)
	}
	if c.ctx != nil && c.ctx.Err() != nil {
		t = earlier(t, time.Now().Add(cancelGrace))
	}
	return set(earlier(t, c.limit))
}

// earlier of two times, of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// bind makes ctx the context of the statement that runs. Its end shortens the reads and
// writes that wait; a context that was replaced meanwhile does nothing.
func (c *impatientConn) bind(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	if ctx.Done() == nil {
		return
	}
	c.ctx = ctx
	// It stays until the next statement: rows are read after the statement's call
	// returned, and nobody tells when that ends.
	c.unbind = context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ctx == ctx {
			_ = c.Conn.SetDeadline(earlier(c.limit, time.Now().Add(cancelGrace)))
		}
	})
}

// free ends the hold of the last statement's context.
func (c *impatientConn) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
}

func (c *impatientConn) forget() {
	if c.unbind != nil {
		c.unbind()
	}
	c.ctx, c.unbind = nil, nil
}

func (c *impatientConn) Close() error {
	c.free()
	return c.Conn.Close()
}

// pqConn is all that database/sql uses of lib/pq's connection.
type pqConn interface {
	driver.Conn
	driver.QueryerContext
	driver.ExecerContext
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

// boundConn ends statements with their contexts also where the server is silent.
type boundConn struct {
	pqConn
	net *impatientConn
}

func (c *boundConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.net.bind(ctx)
	return c.pqConn.QueryContext(ctx, query, args)
}

func (c *boundConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.net.bind(ctx)
	return c.pqConn.ExecContext(ctx, query, args)
}

// IsValid keeps connections out of the pool that lib/pq takes for good ones: it passes over a read that fails between an
// error of the server's and the end of that answer, and refuses every later statement, because one is in progress.
func (c *boundConn) IsValid() bool { return c.pqConn.IsValid() && !c.net.isBroken() }

func (c *boundConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	c.net.free() // what is prepared outlives ctx
	return c.pqConn.PrepareContext(ctx, query)
}

func (c *boundConn) Ping(ctx context.Context) error {
	c.net.bind(ctx)
	return c.pqConn.Ping(ctx)
}

func (c *boundConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.net.bind(ctx)
	tx, err := c.pqConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &boundTx{Tx: tx, net: c.net}, nil
}

// boundTx ends a transaction whatever became of the contexts of its statements.
type boundTx struct {
	driver.Tx
	net *impatientConn
}

func (t *boundTx) Commit() error {
	t.net.free()
	return t.Tx.Commit()
}

func (t *boundTx) Rollback() error {
	t.net.free()
	return t.Tx.Rollback()
}
