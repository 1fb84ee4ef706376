package storetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// submitTests are about tasks that came as messages, which may come again.
func submitTests(add adder) {
	submit := func(h *harness, list ...persistence.Submission) []persistence.Submitted {
		h.Helper()
		for i := range list {
			if list[i].Task.Scene == "" {
				list[i].Task.Scene = scene
			}
		}
		out, err := h.Store.Submit(h.ctx, list)
		h.ok(err)
		if len(out) != len(list) {
			h.Fatalf("%d messages, %d answers", len(list), len(out))
		}
		return out
	}
	one := func(id, key, args string) persistence.Submission {
		return persistence.Submission{MessageID: id, Task: persistence.NewTask{Key: key, Args: []byte(args), Deadline: time.Hour}}
	}
	tasks := func(h *harness) int {
		h.Helper()
		list, err := h.Store.List(h.ctx, persistence.Filter{Limit: 10_000})
		h.ok(err)
		return len(list)
	}
	add("Submit/nothing", func(h *harness) {
		same(h, "answers", len(submit(h)), 0)
	})
	add("Submit/stores what Insert would", func(h *harness) {
		got := submit(h, one("m1", "b", "x"), one("", "a", "y"), one("m2", "", "z"))
		for i, want := range []string{"x", "y", "z"} {
			same(h, "created", got[i].Created, true)
			same(h, "repeated", got[i].Repeated, false)
			same(h, "args", string(h.get(got[i].ID).Args), want)
			same(h, "status", h.get(got[i].ID).Status, retry.StatusWait)
		}
		same(h, "messages", h.Messages(h), 2)
	})
	add("Submit/a message that comes again", func(h *harness) {
		first := submit(h, one("m", "", "x"))[0]
		for range 2 {
			again := submit(h, one("m", "", "x"), one("n", "", "x"))
			same(h, "repeated", again[0].Repeated, true)
			same(h, "created", again[0].Created, false)
			same(h, "id", again[0].ID, first.ID)
			same(h, "status", again[0].Status, retry.StatusWait)
		}
		same(h, "tasks", tasks(h), 2)
	})
	add("Submit/again after its task ended, with a key that may be reused", func(h *harness) {
		m := one("m", "k", "x")
		m.Task.ReuseKey = true
		first := submit(h, m)[0]
		h.end(h.take(first.ID), retry.StatusSuccess)
		again := submit(h, m)[0]
		same(h, "repeated", again.Repeated, true)
		same(h, "id", again.ID, first.ID)
		same(h, "status", again.Status, retry.StatusSuccess)
		m.MessageID = "n"
		fresh := submit(h, m)[0]
		same(h, "created", fresh.Created, true)
		same(h, "tasks", tasks(h), 2)
	})
	add("Submit/again after its task has gone", func(h *harness) {
		first := submit(h, one("m", "", "x"))[0]
		h.end(h.take(first.ID), retry.StatusSuccess)
		h.Shift(h, first.ID, FinishedAt, -time.Hour)
		_, err := h.Store.Sweep(h.ctx, time.Minute, 10)
		h.ok(err)
		again := submit(h, one("m", "", "x"))[0]
		same(h, "repeated", again.Repeated, true)
		same(h, "id", again.ID, first.ID)
		same(h, "status", again.Status, "")
	})
	add("Submit/twice in one call", func(h *harness) {
		got := submit(h, one("m", "", "x"), one("m", "", "x"), one("m", "", "other"))
		same(h, "created", got[0].Created, true)
		same(h, "repeated", got[1].Repeated, true)
		same(h, "id", got[1].ID, got[0].ID)
		same(h, "conflict", got[2].Conflict, true)
		same(h, "tasks", tasks(h), 1)
		same(h, "repeated", submit(h, one("m", "", "x"))[0].Repeated, true)
	})
	add("Submit/one id for different tasks", func(h *harness) {
		submit(h, one("m", "", "x"))
		got := submit(h, one("m", "", "y"))[0]
		same(h, "conflict", got.Conflict, true)
		same(h, "repeated", got.Repeated, false)
		same(h, "messages", h.Messages(h), 1)
	})
	add("Submit/an insert whose answer was lost", func(h *harness) {
		ids, err := h.Store.NextIDs(h.ctx, 1)
		h.ok(err)
		h.insert(persistence.NewTask{ID: ids[0], Args: []byte("x"), Deadline: time.Hour})
		m := one("m", "", "x")
		m.Task.ID = ids[0]
		got := submit(h, m)[0]
		same(h, "created", got.Created, true)
		same(h, "id", got.ID, ids[0])
		same(h, "status", got.Status, retry.StatusWait)
		same(h, "tasks", tasks(h), 1)
		same(h, "repeated", submit(h, m)[0].Repeated, true)
	})
	add("Submit/keys that are held", func(h *harness) {
		held := h.insert(persistence.NewTask{Key: "k", Args: []byte("x")})[0]
		got := submit(h, one("equal", "k", "x"), one("other", "k", "y"), one("fresh", "l", "x"))
		same(h, "created", got[0].Created, false)
		same(h, "conflict", got[0].Conflict, false)
		same(h, "id", got[0].ID, held.ID)
		same(h, "conflict", got[1].Conflict, true)
		same(h, "id", got[1].ID, held.ID)
		same(h, "created", got[2].Created, true)
		got = submit(h, one("equal", "k", "x"), one("other", "k", "y"))
		same(h, "repeated", got[0].Repeated, true)
		same(h, "id", got[0].ID, held.ID)
		same(h, "conflict", got[1].Conflict, true) // and not repeated: it was not taken
	})
	add("Submit/ids of others", func(h *harness) {
		theirs, err := h.Other.Insert(h.ctx, []persistence.NewTask{{Scene: scene, Args: []byte("x")}})
		h.ok(err)
		ours := h.insert(persistence.NewTask{Key: "k"}, persistence.NewTask{Args: []byte("restored")})
		with := func(message, key string, id int64) persistence.Submission {
			m := one(message, key, "x")
			m.Task.ID = id
			return m
		}
		ids, err := h.Store.NextIDs(h.ctx, 1)
		h.ok(err)
		got := submit(h, with("a", "", theirs[0].ID), with("b", "", ours[0].ID), with("c", "", ours[1].ID),
			with("d", "", ids[0]), with("e", "key", ids[0]), with("f", "", ids[0]), one("g", "", "x"))
		for i, conflict := range []bool{true, true, true, false, true, false, false} {
			same(h, fmt.Sprintf("conflict of %d", i), got[i].Conflict, conflict)
		}
		same(h, "repeated", got[5].Repeated, true)
		same(h, "created", got[6].Created, true)
		same(h, "messages", h.Messages(h), 3)
	})
	add("Submit/at once", func(h *harness) {
		var wg sync.WaitGroup
		created := make([]int, 4)
		for w := range created {
			wg.Go(func() {
				var list []persistence.Submission
				for i := range 50 {
					m := one(fmt.Sprintf("m%d", (i*7+w*13)%50), "", "x")
					m.Task.Scene = scene
					list = append(list, m)
				}
				out, err := h.Store.Submit(h.ctx, list)
				if err != nil {
					h.Errorf("worker %d: %v", w, err)
				}
				for _, s := range out {
					if s.Created {
						created[w]++
					}
				}
			})
		}
		wg.Wait()
		same(h, "created", created[0]+created[1]+created[2]+created[3], 50)
		same(h, "tasks", tasks(h), 50)
	})
	add("Submit/invalid", func(h *harness) {
		for _, m := range []persistence.Submission{
			{Task: persistence.NewTask{Scene: "No"}}, {MessageID: "a\x00", Task: persistence.NewTask{Scene: scene}}, {MessageID: "\xff", Task: persistence.NewTask{Scene: scene}},
		} {
			_, err := h.Store.Submit(h.ctx, []persistence.Submission{one("m", "", "x"), m})
			h.is(err, retry.ErrInvalid)
		}
		same(h, "tasks", tasks(h), 0)
	})
	add("Submit/services are apart", func(h *harness) {
		submit(h, one("m", "", "x"))
		m := one("m", "", "y")
		m.Task.Scene = scene
		got, err := h.Other.Submit(h.ctx, []persistence.Submission{m})
		h.ok(err)
		same(h, "created", got[0].Created, true)
	})
	add("Submit/messages are forgotten with time", func(h *harness) {
		submit(h, one("a", "", "x"), one("b", "", "x"), one("c", "", "x"))
		h.ShiftMessages(h, -time.Hour)
		submit(h, one("d", "", "x"))
		for _, want := range []int{2, 1, 1} {
			_, err := h.Store.Sweep(h.ctx, time.Minute, 2)
			h.ok(err)
			same(h, "messages", h.Messages(h), want)
		}
		same(h, "tasks", tasks(h), 4)
	})
	add("Insert/a task that comes too late", func(h *harness) {
		in := h.insert(persistence.NewTask{Status: retry.StatusFailed, StopReason: retry.ReasonDeadlineExceeded, Deadline: time.Millisecond,
			Event: &persistence.Event{Reason: retry.ReasonDeadlineExceeded, Actor: "p"}})[0]
		t := h.get(in.ID)
		same(h, "status", t.Status, retry.StatusFailed)
		same(h, "reason", t.StopReason, retry.ReasonDeadlineExceeded)
		same(h, "ended", t.FinishedAt != nil, true)
		same(h, "to", h.events(in.ID)[0].To, retry.StatusFailed)
		same(h, "in the answer", in.Status, retry.StatusFailed)
		_, err := h.Store.Insert(h.ctx, []persistence.NewTask{{Scene: scene, Status: retry.StatusFailed, Token: uuid.NewString()}})
		h.is(err, retry.ErrInvalid)
	})
}
