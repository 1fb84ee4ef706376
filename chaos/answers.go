package main

import (
	"io"
	"net/http"

	"github.com/spillway-mq/spillway/retry"
)

// The steps that a call can be for.
const (
	stepExecute  = "execute"
	stepCheck    = "check"
	stepQuery    = "query"
	stepCallback = "callback"
)

// answer meets Check and Query, which tell the truth or fail, and Callback, which books.
func (d *downstream) answer(w http.ResponseWriter, c *call) {
	n := draw(d.seed, c.Step, c.Key, c.Attempt)
	switch {
	case n < 8:
		c.Fate = transient
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	case n < 12 && c.Step != stepCallback:
		c.Fate = cutBefore
		hangUp(w)
		return
	}
	d.mu.Lock()
	switch c.Fate = fine; c.Step {
	case stepCheck:
		c.Said = d.check(c, n)
	case stepQuery:
		c.Said = d.query(c, n)
	case stepCallback:
		c.Said = "booked"
	}
	said := c.Said
	d.mu.Unlock()
	if c.Step == stepCallback && n < 20 {
		c.Fate = cutAfter
		hangUp(w)
		return
	}
	_, _ = io.WriteString(w, said)
}

// check knows what was booked. Sometimes it takes a task for begun that is not. d.mu is held.
func (d *downstream) check(c *call, n int) string {
	for _, other := range d.ledger[place(c.Scene, c.Key)] {
		if other.Step == stepCallback && other.Said != "" {
			return string(retry.Done)
		}
	}
	if n < 20 {
		return string(retry.InFlight)
	}
	return string(retry.NotStarted)
}

// query knows every effect, and every call that is under way here. d.mu is held.
func (d *downstream) query(c *call, n int) string {
	said := retry.NoEffect
	for _, other := range d.ledger[place(c.Scene, c.Key)] {
		switch {
		case !other.Effect.IsZero():
			return string(retry.TookEffect)
		case other.Step == stepExecute && other.End.IsZero():
			said = retry.Pending
		}
	}
	if said == retry.NoEffect && n < 16 {
		said = retry.CannotTell
	}
	return string(said)
}
