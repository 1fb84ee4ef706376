package storetest

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func insertTests(add adder) {
	// Trap: a batch of several scenes is stored under the first one's.
	add("Insert/a batch of several scenes stores each under its own", func(h *harness) {
		var tasks []persistence.NewTask
		for _, name := range []string{"z", "a", "m", "a", "z"} { // not in the order in which they are inserted
			tasks = append(tasks, persistence.NewTask{Scene: name, Key: "k" + strconv.Itoa(len(tasks)), Args: []byte(name)})
		}
		for i, in := range h.insert(tasks...) {
			t := h.get(in.ID)
			same(h, "scene", t.Scene, tasks[i].Scene)
			same(h, "key", t.Key, tasks[i].Key)
			same(h, "arguments", string(t.Args), tasks[i].Scene)
		}
		// One key in two scenes is two keys.
		in := h.insert(persistence.NewTask{Scene: "a", Key: "k0", Args: []byte("x")})[0]
		same(h, "created", in.Created, true)
	})
	add("Insert/stores what was given", func(h *harness) {
		args := []byte{0, 1, 0xff, '\\', '"', 0, 0xc3, 0x28}
		headers := map[string]string{"trace": "a\"b\\c", "ключ": "значение"}
		in := h.insert(persistence.NewTask{Key: "k' \\ \"ключ\"", Args: args, ContentType: "application/json", Headers: headers, Delay: time.Hour, Deadline: 2 * time.Hour})[0]
		same(h, "created", in.Created, true)
		same(h, "status", in.Status, retry.StatusWait)
		same(h, "delay", in.Delay, time.Hour)
		t := h.get(in.ID)
		same(h, "service", t.Service, Service)
		same(h, "scene", t.Scene, scene)
		same(h, "key", t.Key, "k' \\ \"ключ\"")
		same(h, "content type", t.ContentType, "application/json")
		same(h, "attempt", t.Attempt, 0)
		if !bytes.Equal(t.Args, args) || !maps.Equal(t.Headers, headers) {
			h.Errorf("args %q and headers %v came back as %q, %v", args, headers, t.Args, t.Headers)
		}
		same(h, "time to due", t.NextAt.Sub(t.CreatedAt), time.Hour)
		same(h, "time to deadline", t.DeadlineAt.Sub(t.CreatedAt), 2*time.Hour)
		if t.LeaseUntil != nil || t.FinishedAt != nil || t.ClaimToken != "" {
			h.Errorf("a new task has a claim or an end: %+v", t)
		}
	})
	add("Insert/nothing", func(h *harness) {
		in, err := h.Store.Insert(h.ctx, nil)
		h.ok(err)
		same(h, "answers", len(in), 0)
	})
	add("Insert/no arguments are no arguments", func(h *harness) {
		in := h.insert(persistence.NewTask{Key: "a"}, persistence.NewTask{Key: "b", Args: []byte{}})
		same(h, "length", len(h.get(in[0].ID).Args)+len(h.get(in[1].ID).Args), 0)
		again := h.insert(persistence.NewTask{Key: "a", Args: []byte{}})[0]
		same(h, "conflict", again.Conflict, false)
	})
	add("Insert/answers in the order given", func(h *harness) {
		keys := []string{"m", "z", "a", "k", "b"}
		var tasks []persistence.NewTask
		for _, k := range keys {
			tasks = append(tasks, persistence.NewTask{Scene: "s." + k, Key: k, Args: []byte(k)})
		}
		for i, in := range h.insert(tasks...) {
			t := h.get(in.ID)
			same(h, "key", t.Key, keys[i])
			same(h, "scene", t.Scene, "s."+keys[i])
		}
	})
	add("Insert/ids of the caller", func(h *harness) {
		ids, err := h.Store.NextIDs(h.ctx, 1000)
		h.ok(err)
		more, err := h.Store.NextIDs(h.ctx, 3)
		h.ok(err)
		all := append(slices.Clone(ids), more...)
		slices.Sort(all)
		same(h, "distinct ids", len(slices.Compact(all)), 1003)
		in := h.insert(persistence.NewTask{ID: ids[7]})[0]
		same(h, "id", in.ID, ids[7])
		// Again with the same id, as after an answer that was lost: recognised.
		in = h.insert(persistence.NewTask{ID: ids[7]})[0]
		same(h, "id", in.ID, ids[7])
		same(h, "created", in.Created, true)
		none, err := h.Store.NextIDs(h.ctx, 0)
		h.ok(err)
		same(h, "no ids", len(none), 0)
	})
	add("Insert/an id that another key has", func(h *harness) {
		in := h.insert(persistence.NewTask{Key: "a"})[0]
		if _, err := h.Store.Insert(h.ctx, []persistence.NewTask{{ID: in.ID, Scene: scene, Key: "b"}}); err == nil {
			h.Error("an id was used twice without an error")
		}
	})
	add("Insert/journal of the inline run", func(h *harness) {
		facts := &retry.Facts{TaskID: 1 << 60, Attempt: 0, Elapsed: 1500 * time.Millisecond, Class: retry.ClassTransient, RetryAfter: time.Second}
		decision := &retry.Decision{Status: retry.StatusWait, Reason: retry.ReasonScheduleRetry, Delay: 3 * time.Second, Ceiling: 4 * time.Second, Jittered: 2900 * time.Millisecond}
		in := h.insert(
			persistence.NewTask{Key: "with", LastError: "boom", LastClass: retry.ClassTransient, Event: &persistence.Event{
				Reason: retry.ReasonScheduleRetry, Class: retry.ClassTransient, Actor: "publisher", Note: "n", PolicyVersion: 4, Facts: facts, Decision: decision}},
			persistence.NewTask{Key: "without"},
		)
		events := h.events(in[0].ID)
		if len(events) != 1 {
			h.Fatalf("%d events, want 1", len(events))
		}
		e := events[0]
		if e.Attempt != 0 || e.From != "" || e.To != retry.StatusWait || e.Reason != retry.ReasonScheduleRetry || e.Class != retry.ClassTransient ||
			e.Error != "boom" || e.Actor != "publisher" || e.Note != "n" || e.PolicyVersion != 4 || e.At.IsZero() {
			h.Errorf("event came back as %+v", e)
		}
		if e.Facts == nil || *e.Facts != *facts || e.Decision == nil || *e.Decision != *decision {
			h.Errorf("facts %+v and decision %+v came back as %+v, %+v", facts, decision, e.Facts, e.Decision)
		}
		same(h, "events without one", len(h.events(in[1].ID)), 0)
		same(h, "last error", h.get(in[0].ID).LastError, "boom")
		same(h, "last class", h.get(in[0].ID).LastClass, retry.ClassTransient)
		same(h, "unknown", h.get(in[0].ID).Unknown, false)
	})
	add("Insert/straight to a person", func(h *harness) {
		in := h.insert(persistence.NewTask{Status: retry.StatusManualReview, StopReason: retry.ReasonManualReview, LastError: "?", LastClass: retry.ClassUnknown})[0]
		same(h, "status", in.Status, retry.StatusManualReview)
		same(h, "delay", in.Delay, 0)
		t := h.get(in.ID)
		same(h, "stop reason", t.StopReason, retry.ReasonManualReview)
		same(h, "unknown", t.Unknown, true)
		if _, got := h.claim(in.ID); len(got) != 0 {
			h.Error("a task on a person's desk was claimed")
		}
	})
	add("Insert/far tasks wait for the scan", func(h *harness) {
		in := h.insert(persistence.NewTask{Key: "near", Delay: h.Horizon}, persistence.NewTask{Key: "far", Delay: 60 * 24 * time.Hour}, persistence.NewTask{Key: "now"})
		same(h, "near is far", in[0].Far, false)
		same(h, "far is far", in[1].Far, true)
		far := h.get(in[1].ID)
		lead := far.NextAt.Sub(far.DispatchAfter)
		if lead <= h.Horizon/2 || lead > h.Horizon {
			h.Errorf("a far task is dispatched %v before it is due, want nearly the horizon %v", lead, h.Horizon)
		}
		if _, got := h.claim(in[0].ID, in[1].ID, in[2].ID); len(got) != 1 || got[0].ID != in[2].ID {
			h.Errorf("claimed %+v, want only the task that is due", got)
		}
		same(h, "tasks to scan", len(h.undispatched()), 0)
		h.Shift(h, in[1].ID, DispatchAfter, -60*24*time.Hour)
		if w, ok := h.undispatched()[in[1].ID]; !ok || w.In < 59*24*time.Hour {
			h.Errorf("the far task is not scanned once it is within reach: %+v", w)
		}
	})
	add("Insert/huge delays and deadlines", func(h *harness) {
		const huge = 1<<63 - 1
		in := h.insert(persistence.NewTask{Delay: huge, Deadline: huge})[0]
		t := h.get(in.ID)
		if t.NextAt.Year() < 2300 || t.DeadlineAt.Year() < 2300 || t.DispatchAfter.Year() < 2300 {
			h.Errorf("huge times came back as %v, %v, %v", t.NextAt, t.DeadlineAt, t.DispatchAfter)
		}
	})
	add("Insert/bad input is named and stores nothing", func(h *harness) {
		bad := map[string]persistence.NewTask{
			"scene":         {Scene: "No Such"},
			"key":           {Key: "a\x00b"},
			"key UTF-8":     {Key: "\xff"},
			"key length":    {Key: strings.Repeat("k", 256)},
			"content type":  {ContentType: "a\x00"},
			"headers":       {Headers: map[string]string{"a": "\xff"}},
			"header name":   {Headers: map[string]string{"a\x00": "b"}},
			"workflow":      {Workflow: "\x00", Deadline: time.Hour},
			"workflow only": {Workflow: "w"},
			"delay":         {Delay: -1},
			"deadline":      {Deadline: -1},
			"status":        {Status: retry.StatusSuccess},
			"id":            {ID: -1},
		}
		for name, t := range bad {
			if t.Scene == "" {
				t.Scene = scene
			}
			_, err := h.Store.Insert(h.ctx, []persistence.NewTask{{Scene: scene, Key: "good " + name}, t})
			if h.is(err, retry.ErrInvalid); err != nil && !strings.Contains(err.Error(), strings.Fields(name)[0]) {
				h.Errorf("the error about %s does not name it: %v", name, err)
			}
		}
		list, err := h.Store.List(h.ctx, persistence.Filter{})
		h.ok(err)
		same(h, "tasks stored", len(list), 0)
	})
	add("Insert/error texts are cut and cleaned", func(h *harness) {
		in := h.insert(
			persistence.NewTask{LastError: strings.Repeat("x", 1<<20), Event: &persistence.Event{Note: strings.Repeat("n", 1<<20), Actor: strings.Repeat("a", 1<<20)}},
			persistence.NewTask{LastError: "a\x00b\xffc", Event: &persistence.Event{Note: "n\x00\xff", Actor: "\x00a"}},
		)
		long := h.get(in[0].ID).LastError
		if len(long) > persistence.MaxErrorLen+64 || !strings.Contains(long, "cut") {
			h.Errorf("an error text of 1 MB is stored with %d bytes: …%s", len(long), long[max(0, len(long)-40):])
		}
		same(h, "cleaned error", h.get(in[1].ID).LastError, "ab\uFFFDc")
		same(h, "events", len(h.events(in[0].ID)), 1)
		same(h, "events", len(h.events(in[1].ID)), 1)
	})
	add("Insert/more arguments than one statement carries", func(h *harness) {
		const n, size = 12, 1 << 20
		var tasks []persistence.NewTask
		for i := range n {
			tasks = append(tasks, persistence.NewTask{Args: bytes.Repeat([]byte{byte(i)}, size)})
		}
		for i, in := range h.insert(tasks...) {
			t := h.get(in.ID)
			if !in.Created || len(t.Args) != size || t.Args[0] != byte(i) || t.Args[size-1] != byte(i) {
				h.Errorf("task %d came back with %d bytes of %d", i, len(t.Args), t.Args[0])
			}
		}
	})
	add("Insert/a batch of 5000", func(h *harness) {
		seen := map[int64]bool{}
		for _, id := range h.add(5000) {
			seen[id] = true
		}
		same(h, "distinct ids", len(seen), 5000)
	})
	add("InsertTx/rolled back leaves nothing, committed all", func(h *harness) {
		tx := h.Begin(h)
		in, err := h.Store.InsertTx(h.ctx, tx, []persistence.NewTask{{Scene: scene, Key: "a", Workflow: "w", Deadline: time.Hour, Event: &persistence.Event{}}})
		h.ok(err)
		h.ok(tx.Rollback())
		_, err = h.Store.Get(h.ctx, in[0].ID)
		h.is(err, retry.ErrNotFound)
		same(h, "events", len(h.events(in[0].ID)), 0)

		tx = h.Begin(h)
		in, err = h.Store.InsertTx(h.ctx, tx, []persistence.NewTask{{Scene: scene, Key: "a"}, {Scene: scene, Key: "b", Delay: 10 * time.Minute}})
		h.ok(err)
		_, err = h.Store.Get(h.ctx, in[0].ID)
		h.is(err, retry.ErrNotFound) // nobody sees it before the commit
		h.ok(tx.Commit())
		now, later := h.get(in[0].ID), h.get(in[1].ID)
		// Nobody publishes the wake-ups, so the scan takes them soon.
		if d := now.DispatchAfter.Sub(now.NextAt); d != 0 {
			h.Errorf("the scan takes a due task %v after it was inserted, want at once", d)
		}
		if d := later.DispatchAfter.Sub(later.CreatedAt); d != persistence.DispatchGap {
			h.Errorf("the scan takes a later task %v after it was inserted, want %v", d, persistence.DispatchGap)
		}
	})
	add("InsertTx/knows the caller's own rows", func(h *harness) {
		tx := h.Begin(h)
		defer func() { _ = tx.Rollback() }()
		first, err := h.Store.InsertTx(h.ctx, tx, []persistence.NewTask{{Scene: scene, Key: "a"}})
		h.ok(err)
		second, err := h.Store.InsertTx(h.ctx, tx, []persistence.NewTask{{Scene: scene, Key: "a"}})
		h.ok(err)
		same(h, "created", second[0].Created, false)
		same(h, "id", second[0].ID, first[0].ID)
	})
	add("Insert/workflow deadline is fixed by the first task", func(h *harness) {
		in := h.insert(persistence.NewTask{Workflow: "w", Deadline: time.Hour}, persistence.NewTask{Workflow: "w", Deadline: 5 * time.Hour}, persistence.NewTask{Deadline: 5 * time.Hour})
		later := h.insert(persistence.NewTask{Workflow: "w", Deadline: time.Minute})[0]
		first := h.get(in[0].ID)
		same(h, "workflow", first.Workflow, "w")
		h.near("deadline", first.DeadlineAt.Sub(first.CreatedAt), time.Hour)
		for _, id := range []int64{in[1].ID, later.ID} {
			if t := h.get(id); !t.DeadlineAt.Equal(*first.DeadlineAt) {
				h.Errorf("deadlines of one workflow differ: %v, %v", t.DeadlineAt, first.DeadlineAt)
			}
		}
		h.near("deadline of its own", h.get(in[2].ID).DeadlineAt.Sub(first.CreatedAt), 5*time.Hour)
		other, err := h.Other.Insert(h.ctx, []persistence.NewTask{{Scene: scene, Workflow: "w", Deadline: 3 * time.Hour}})
		h.ok(err)
		t, err := h.Other.Get(h.ctx, other[0].ID)
		h.ok(err)
		h.near("deadline in another service", t.DeadlineAt.Sub(t.CreatedAt), 3*time.Hour)
	})
}

func keyTests(add adder) {
	task := func(key, args string) persistence.NewTask {
		return persistence.NewTask{Key: key, Args: []byte(args), ContentType: "text/plain"}
	}
	add("Key/equal task is the existing one, in every state", func(h *harness) {
		for _, s := range []retry.Status{retry.StatusWait, retry.StatusExecuting, retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview, retry.StatusCancelled} {
			c := h.in(s)
			key := h.get(c.ID).Key
			in := h.insert(persistence.NewTask{Key: key})[0]
			same(h, "created", in.Created, false)
			same(h, "conflict", in.Conflict, false)
			same(h, "id", in.ID, c.ID)
			same(h, "status", in.Status, s)
			same(h, "status after", h.get(c.ID).Status, s)
		}
	})
	add("Key/other arguments are a conflict", func(h *harness) {
		first := h.insert(task("k", "a"))[0]
		other := task("k", "a")
		other.ContentType = "application/json"
		for _, t := range []persistence.NewTask{task("k", "b"), task("k", ""), other} {
			in := h.insert(t)[0]
			same(h, "conflict", in.Conflict, true)
			same(h, "created", in.Created, false)
			same(h, "id", in.ID, first.ID)
		}
		same(h, "arguments", string(h.get(first.ID).Args), "a")
	})
	add("Key/scenes and services do not share keys", func(h *harness) {
		t := task("k", "a")
		u := task("k", "b")
		u.Scene = "scene.b"
		for _, in := range h.insert(t, u) {
			same(h, "created", in.Created, true)
		}
		t.Scene = scene
		t.Args = []byte("c")
		in, err := h.Other.Insert(h.ctx, []persistence.NewTask{t})
		h.ok(err)
		same(h, "created", in[0].Created, true)
	})
	add("Key/twice within a batch", func(h *harness) {
		in := h.insert(task("k", "a"), task("j", "x"), task("k", "a"), task("k", "b"))
		same(h, "first is created", in[0].Created, true)
		same(h, "second is created", in[2].Created, false)
		same(h, "second's id", in[2].ID, in[0].ID)
		same(h, "second conflicts", in[2].Conflict, false)
		same(h, "third conflicts", in[3].Conflict, true)
		same(h, "third's id", in[3].ID, in[0].ID)
		same(h, "other key is created", in[1].Created, true)
	})
	add("Key/reused only where allowed and terminal", func(h *harness) {
		for _, s := range []retry.Status{retry.StatusWait, retry.StatusExecuting, retry.StatusManualReview, retry.StatusSuccess, retry.StatusFailed, retry.StatusCancelled} {
			c := h.in(s)
			key := h.get(c.ID).Key
			t := persistence.NewTask{Key: key, Args: []byte("new")}
			same(h, "conflict without leave", h.insert(t)[0].Conflict, true)
			t.ReuseKey = true
			in := h.insert(t)[0]
			if s.Terminal() {
				same(h, "created over "+string(s), in.Created, true)
				same(h, "old status", h.get(c.ID).Status, s)
				same(h, "new status", h.get(in.ID).Status, retry.StatusWait)
				// The new task holds the key now.
				t.ReuseKey = false
				same(h, "holder", h.insert(t)[0].ID, in.ID)
			} else {
				same(h, "conflict over "+string(s), in.Conflict, true)
			}
		}
	})
	add("Key/reused within a batch of all kinds", func(h *harness) {
		done := h.in(retry.StatusSuccess)
		open := h.in(retry.StatusWait)
		reuse := func(key string) persistence.NewTask {
			return persistence.NewTask{Key: key, Args: []byte("new"), ReuseKey: true}
		}
		in := h.insert(reuse(h.get(done.ID).Key), reuse(h.get(open.ID).Key), reuse("fresh"), reuse(h.get(done.ID).Key))
		same(h, "taken over", in[0].Created, true)
		same(h, "held", in[1].Conflict, true)
		same(h, "fresh", in[2].Created, true)
		same(h, "second of one key", in[3].Created, false)
		same(h, "second of one key is the first", in[3].ID, in[0].ID)
	})
	add("Key/an id that lost its key is still recognised", func(h *harness) {
		first := h.insert(persistence.NewTask{Key: "k"})[0]
		h.end(h.take(first.ID), retry.StatusSuccess)
		h.insert(persistence.NewTask{Key: "k", ReuseKey: true})
		in := h.insert(persistence.NewTask{ID: first.ID, Key: "k", ReuseKey: true})[0]
		same(h, "id", in.ID, first.ID)
		same(h, "created", in.Created, true)
		same(h, "status", in.Status, retry.StatusSuccess)
	})
	add("Key/reused in the caller's transaction", func(h *harness) {
		done := h.in(retry.StatusFailed)
		key := h.get(done.ID).Key
		tx := h.Begin(h)
		in, err := h.Store.InsertTx(h.ctx, tx, []persistence.NewTask{{Scene: scene, Key: key, ReuseKey: true}})
		h.ok(err)
		same(h, "created", in[0].Created, true)
		h.ok(tx.Rollback())
		same(h, "holder after rollback", h.insert(persistence.NewTask{Key: key})[0].ID, done.ID)
	})
}
