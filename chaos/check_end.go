package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// told is all that the processes and the person were told by the product.
type told struct {
	said    map[string][]said // by process
	actions []persistence.Action
}

// outcome is what there is at the end of a run.
type outcome struct {
	told
	Tasks    map[int64]retry.Task
	Open     map[int64]bool // neither ended, nor for a person, nor waiting for a time to come
	Changes  map[int64][]change
	Events   map[int64][]persistence.Event
	Calls    map[string][]call
	Business map[string]bool // keys of transactions that committed
}

// checkEnd holds the end of a run against what was told on the way.
func checkEnd(o outcome) []violation {
	var c checker
	keys := map[string]retry.Task{}
	for _, t := range o.Tasks {
		keys[place(t.Scene, t.Key)] = t
	}
	for name, list := range o.said {
		for _, s := range list {
			switch t, exists := keys[place(s.Scene, s.Key)]; s.Event {
			case eventAccepted:
				if !exists {
					c.bad(0, "lost: %s accepted the task %s as number %d, and it is not there", name, s.Key, s.Task)
				} else if t.ID != s.Task && s.Task != 0 { // a task of the submit queue may have no number yet
					c.bad(t.ID, "%s accepted the task %s as number %d, and it is %d", name, s.Key, s.Task, t.ID)
				}
			case eventDone:
				if !effected(o.Calls[place(s.Scene, s.Key)]) {
					c.bad(t.ID, "%s was told that the call for %s succeeded, and it had no effect", name, s.Key)
				}
				if strings.HasPrefix(s.Key, "record:") && t.Status != retry.StatusSuccess {
					c.bad(t.ID, "%s was told that the record %s succeeded, and it is %s", name, s.Key, t.Status)
				}
			case eventOdd:
				c.bad(t.ID, "%s got an error for %s that no fault explains: %s", name, s.Key, s.Text)
			case "finished":
				ok := slices.ContainsFunc(o.Changes[s.Task], func(ch change) bool {
					return ch.Writer == name && held(ch.Old) && ch.Old.Attempt == s.Attempt && string(ch.New.Status) == s.Status
				})
				if !ok {
					c.bad(s.Task, "%s was told that it finished attempt %d as %s, and it is not so", name, s.Attempt, s.Status)
				}
			}
		}
	}
	for _, a := range o.actions {
		ok := slices.ContainsFunc(o.Events[a.ID], func(e persistence.Event) bool { return e.Actor == a.Actor && e.Note == a.Note })
		if !ok {
			c.bad(a.ID, "the person's %s (%s) is not in the journal", a.Verb, a.Note)
		}
	}
	for id, t := range o.Tasks {
		if o.Open[id] {
			c.bad(id, "no end: still %s when the time to end was over", t.Status)
		}
		byPerson := slices.ContainsFunc(o.Changes[id], func(ch change) bool { return ch.Writer == operator && ch.New.Status == retry.StatusSuccess })
		calls := o.Calls[place(t.Scene, t.Key)]
		s, _ := sceneOf(t.Scene)
		if n := len(o.Changes[id]); t.Status == retry.StatusSuccess && s.books && strings.HasPrefix(o.Changes[id][n-1].Writer, roleConsumer) &&
			!slices.ContainsFunc(calls, func(c call) bool { return c.Step == stepCallback && c.Said != "" }) {
			c.bad(id, "SUCCESS by a consumer, and nothing was booked")
		}
		if t.Status == retry.StatusSuccess && !byPerson && !effected(calls) {
			c.bad(id, "SUCCESS without an effect")
		}
		if strings.HasPrefix(t.Key, "tx:") && !o.Business[t.Key] {
			c.bad(id, "the task exists, and the business change of its transaction does not")
		}
	}
	for key := range o.Business {
		if !slices.ContainsFunc(scenes(), func(s scene) bool { _, ok := keys[place(s.Name, key)]; return ok }) {
			c.bad(0, "lost: the transaction of %s committed, and its task is not there", key)
		}
	}
	return c.found
}

func effected(calls []call) bool {
	return slices.ContainsFunc(calls, func(c call) bool { return !c.Effect.IsZero() })
}

func (v violation) String() string {
	if v.Task == 0 {
		return v.What
	}
	return fmt.Sprintf("task %d: %s", v.Task, v.What)
}
