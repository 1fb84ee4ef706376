package publisher

import (
	"errors"
	"sync"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

const (
	// outageHint is how long calls go to the submit queue directly after the store hung.
	outageHint = time.Second
	// outageHang is from when on a store that does not answer counts as hanging, and not as
	// called with little time.
	outageHang = time.Second
	// outageSay is how often an outage that goes on is logged.
	outageSay = time.Minute
)

// outage remembers that the store hung a moment ago, so that not every call waits for it in
// vain. One that fails at once costs nothing and is asked each time.
type outage struct {
	mu    sync.Mutex
	err   error     // of the call that hung; nil: none
	until time.Time // from when on a call may look again
	said  time.Time
}

// hint returns why not to ask the store. After outageHint it lets one caller look again, and
// the others in the next outageHint not.
func (o *outage) hint() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.err == nil || now.Before(o.until) {
		return o.err
	}
	o.until = now.Add(outageHint)
	return nil
}

// hung notes that the store did not answer.
func (o *outage) hung(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err, o.until = err, time.Now().Add(outageHint)
}

// over notes that the store answers. It reports whether that is worth a line.
func (o *outage) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	say := !o.said.IsZero()
	o.err, o.said = nil, time.Time{}
	return say
}

// say reports whether the outage is worth a line.
func (o *outage) say() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.said) < outageSay {
		return false
	}
	o.said = time.Now()
	return true
}

// away reports whether an error of the store means that the same tasks will do once it is back.
// A schema that is missing, or closed to us, is a matter of deployment, which a queue would only
// hide.
func away(err error) bool {
	if errors.Is(err, retry.ErrInvalid) || errors.Is(err, retry.ErrKeyConflict) || errors.Is(err, retry.ErrSchema) || errors.Is(err, errTooLate) {
		return false
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) && len(state.SQLState()) == 5 {
		class := state.SQLState()[:2]
		return class != "42" && class != "3F"
	}
	return true
}
