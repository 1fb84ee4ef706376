package waker

import (
	"fmt"
	"strconv"
	"time"
)

// collect is the collector. It ends when the window is closed and empty.
func (w *Waker) collect() {
	timer := time.NewTimer(w.cfg.ConfirmTimeout)
	defer timer.Stop()
	for s := range w.window {
		w.settle(w.await(s, timer), s.item)
	}
}

// await waits for the confirm of s. Whoever else ends the wait, a confirm that is there
// counts.
func (w *Waker) await(s sent, timer *time.Timer) error {
	if !s.confirmed() {
		timer.Reset(max(0, time.Until(s.at.Add(w.cfg.ConfirmTimeout))))
		select {
		case <-s.confirm.Done():
		case <-s.on.abandoned:
		case <-s.on.session.Done():
		case <-w.ctx.Done():
		case <-timer.C:
			if !s.confirmed() {
				// A broker that takes messages and says nothing: start afresh.
				s.on.abandon(fmt.Errorf("no confirm within %v", w.cfg.ConfirmTimeout))
			}
		}
	}
	switch {
	case s.confirm.Acked():
		return s.routed()
	case s.on.cause() != nil: // the client library nacks all of a channel that died
		return fmt.Errorf("%w: %w", ErrUnconfirmed, s.on.cause())
	case s.confirmed():
		return ErrNacked
	}
	return fmt.Errorf("%w: %w", ErrUnconfirmed, ErrClosed)
}

func (s sent) confirmed() bool {
	select {
	case <-s.confirm.Done():
		return true
	default:
		return false
	}
}

// routed returns ErrUnroutable if s, which was acked, was returned: the return comes
// before the ack.
func (s sent) routed() error {
	for more := true; more; {
		select {
		case r, open := <-s.on.returns:
			if more = open; open {
				s.on.returned[r.MessageId]++
			}
		default:
			more = false
		}
	}
	if len(s.on.returned) == 0 {
		return nil
	}
	id := strconv.FormatInt(s.ID, 10)
	switch n := s.on.returned[id]; n {
	case 0:
		return nil
	case 1:
		delete(s.on.returned, id)
	default: // the same task is in the window again
		s.on.returned[id] = n - 1
	}
	return ErrUnroutable
}
