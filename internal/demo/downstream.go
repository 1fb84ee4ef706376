package demo

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Kinds of misbehaviour; a task's key says which it meets.
const (
	kindFine   = "fine"
	kind503    = "503 for a while"
	kindDown   = "503 for ever"
	kind429    = "429 with Retry-After"
	kindReset  = "reset after the request was read"
	kind400    = "400"
	kindSlow   = "slow"
	kindHiccup = "one 503"
)

// kindOf gives a key its kind, in a fixed share.
func kindOf(key string) string {
	h := fnv.New32a()
	_, _ = io.WriteString(h, key)
	switch n := h.Sum32() % 100; {
	case n < 50:
		return kindFine
	case n < 62:
		return kindHiccup
	case n < 74:
		return kind503
	case n < 76:
		return kindDown
	case n < 84:
		return kind429
	case n < 90:
		return kindReset
	case n < 93:
		return kind400
	default:
		return kindSlow
	}
}

// entry is what the ledger holds about a key.
type entry struct {
	calls   int
	effects int            // the first that took effect, and no other: the key is recognised
	runs    map[string]int // calls by claim; of the inline run too
}

// downstream is an HTTP server that misbehaves and remembers what it was asked.
type downstream struct {
	server   *http.Server
	listener net.Listener
	done     chan struct{}

	mu     sync.Mutex
	ledger map[string]*entry
}

func startDownstream() (*downstream, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &downstream{listener: l, done: make(chan struct{}), ledger: map[string]*entry{}}
	d.server = &http.Server{Handler: http.HandlerFunc(d.serve), ReadHeaderTimeout: 10 * time.Second}
	go func() { // ends with stop
		defer close(d.done)
		_ = d.server.Serve(l)
	}()
	return d, nil
}

func (d *downstream) url() string { return "http://" + d.listener.Addr().String() }

func (d *downstream) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := d.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, d.server.Close())
	}
	<-d.done
	return err
}

// note counts a call and returns its number.
func (d *downstream) note(key, run string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.ledger[key]
	if e == nil {
		e = &entry{runs: map[string]int{}}
		d.ledger[key] = e
	}
	e.calls++
	e.runs[run]++
	return e.calls
}

// effect books the call, once a key.
func (d *downstream) effect(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.ledger[key]; e.effects == 0 {
		e.effects++
	}
}

func (d *downstream) serve(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	key := r.Header.Get("Demo-Key")
	n := d.note(key, r.Header.Get("Demo-Run"))
	kind := kindOf(key)
	switch {
	case kind == kindDown, kind == kind503 && n <= 4, kind == kindHiccup && n == 1:
		http.Error(w, "the database is being restarted", http.StatusServiceUnavailable)
	case kind == kind429 && n <= 2:
		w.Header().Set("Retry-After", "2")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	case kind == kind400:
		http.Error(w, "no such order", http.StatusBadRequest)
	case kind == kindReset && n == 1:
		// It took effect, and the caller will not hear of it.
		d.effect(key)
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = c.Close()
		}
	default:
		if kind == kindSlow {
			select {
			case <-time.After(700 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
		d.effect(key)
		w.WriteHeader(http.StatusNoContent)
	}
}
