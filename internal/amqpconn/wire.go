package amqpconn

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// wire is the socket under the client library, with a deadline on every read and
// write. The library has none for writes; the one that it sets for reads goes by
// the frames that were worked off, and can be lost: a goroutine of its own sets it
// while the end of the handshake clears all deadlines. So the wire keeps its own
// and takes the library's only as a further limit.
//
// The library's reader is the only one that reads. Writes come from any goroutine,
// one at a time.
type wire struct {
	net.Conn
	writeTimeout time.Duration

	mu      sync.Mutex    // never held during I/O
	limit   time.Time     // for all I/O, set by the library; zero: none
	silence time.Duration // longest time without a byte from the broker; zero: any
	failed  error         // the first error of a read or write
}

// SetDeadline is the library's: at the end of the handshake with zero, and at
// CloseDeadline. It works on I/O that is going on, too.
func (w *wire) SetDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = t
	if err := w.armRead(); err != nil {
		return err
	}
	return w.armWrite()
}

// SetReadDeadline is called by the library's heartbeater. See wire.
func (w *wire) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is for TLS, which sets one for its goodbye.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// setSilence bounds the time without a byte, from now on.
func (w *wire) setSilence(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silence = d
	_ = w.armRead() // on a closed socket, where it does not matter
}

func (w *wire) armRead() error  { return w.Conn.SetReadDeadline(w.until(w.silence)) }
func (w *wire) armWrite() error { return w.Conn.SetWriteDeadline(w.until(w.writeTimeout)) }

func (w *wire) until(d time.Duration) time.Time {
	if d == 0 {
		return w.limit
	}
	t := time.Now().Add(d)
	if !w.limit.IsZero() && w.limit.Before(t) {
		return w.limit
	}
	return t
}

func (w *wire) Read(p []byte) (int, error) {
	w.mu.Lock()
	err := w.armRead()
	w.mu.Unlock()
	n := 0
	if err == nil {
		n, err = w.Conn.Read(p)
	}
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if errors.Is(err, os.ErrDeadlineExceeded) && w.limit.IsZero() {
			err = fmt.Errorf("no byte from the broker for %v: %w", w.silence, err)
		}
		if w.failed == nil {
			w.failed = err
		}
	}
	return n, err
}

// Write closes the socket if it fails: part of a frame may be out, so nothing can
// follow, and the library's reader must learn of it.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	err := w.armWrite()
	w.mu.Unlock()
	n := 0
	if err == nil {
		n, err = w.Conn.Write(p)
	}
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("the broker did not read for %v: %w", w.writeTimeout, err)
		}
		w.mu.Lock()
		if w.failed == nil {
			w.failed = err
		}
		w.mu.Unlock()
		_ = w.Close()
	}
	return n, err
}

// failure is the first error of a read or write, or nil. What the library reports may
// be one that followed from it.
func (w *wire) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}
