package publisher_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	first, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 1})
	if err != nil || !first.Created {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 1, Delay: time.Hour})
	if err != nil || again != (publisher.Result{ID: first.ID, Status: retry.StatusWait}) {
		t.Errorf("equal: %+v, %v", again, err)
	}
	other, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 2})
	var ce *publisher.ConflictError
	if !errors.Is(err, retry.ErrKeyConflict) || !errors.As(err, &ce) || *ce != (publisher.ConflictError{Scene: "s", Key: "k", Holder: first.ID}) {
		t.Errorf("conflict: %v", err)
	}
	if other.ID != first.ID || other.Created {
		t.Errorf("conflict: %+v", other)
	}
	if r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s2", Key: "k", Args: 2}); err != nil || !r.Created {
		t.Errorf("other scene: %+v, %v", r, err)
	}
	for range 2 {
		if r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s"}); err != nil || !r.Created {
			t.Errorf("without a key: %+v, %v", r, err)
		}
	}
	if n := countTasks(t, store); n != 4 {
		t.Errorf("%d tasks", n)
	}
}

func TestReuseKey(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{{Name: "once"}, {Name: "again", ReuseKey: true}}
	})
	for _, scene := range []string{"once", "again"} {
		first, err := p.Enqueue(t.Context(), publisher.Task{Scene: scene, Key: "k", Args: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Operate(t.Context(), persistence.Action{Verb: persistence.Succeed, ID: first.ID, Actor: "me"}); err != nil {
			t.Fatal(err)
		}
		r, err := p.Enqueue(t.Context(), publisher.Task{Scene: scene, Key: "k", Args: 1})
		if err != nil || r.Created != (scene == "again") {
			t.Errorf("%s: %+v, %v", scene, r, err)
		}
		if want := retry.StatusSuccess; scene == "once" && r.Status != want {
			t.Errorf("status %s, want %s", r.Status, want)
		}
	}
}

func TestEnqueueMany(t *testing.T) {
	t.Parallel()
	p, store, ready := connected(t, nil)
	held, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: "held", Args: 0})
	if err != nil {
		t.Fatal(err)
	}
	tasks := []publisher.Task{
		{Scene: "s", Key: "a", Args: 1},
		{Scene: "s", Key: "held", Args: 1}, // conflict
		{Scene: "s", Key: "b", Args: 1},
		{Scene: "s", Key: "a", Args: 1},    // equal to the first
		{Scene: "s", Key: "b", Args: 2},    // conflict with the third
		{Scene: "s", Key: "held", Args: 0}, // equal to the one before
	}
	results, err := p.EnqueueMany(t.Context(), tasks)
	if len(results) != len(tasks) {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for i, created := range []bool{true, false, true, false, false, false} {
		if results[i].Created != created {
			t.Errorf("%d: %+v", i, results[i])
		}
	}
	if results[3].ID != results[0].ID || results[1].ID != held.ID || results[5].ID != held.ID {
		t.Errorf("results %+v", results)
	}
	var conflicts []int
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var ce *publisher.ConflictError
		if !errors.As(e, &ce) || !errors.Is(e, retry.ErrKeyConflict) {
			t.Fatalf("got %v", e)
		}
		conflicts = append(conflicts, ce.Index)
	}
	if fmt.Sprint(conflicts) != "[1 4]" {
		t.Errorf("conflicts %v", conflicts)
	}
	if n := countTasks(t, store); n != 3 {
		t.Errorf("%d tasks", n)
	}
	ready.wait(t, held.ID, results[0].ID, results[2].ID)
	if r, err := p.EnqueueMany(t.Context(), nil); r != nil || err != nil {
		t.Errorf("none: %v, %v", r, err)
	}
}

func TestEnqueueManyLarge(t *testing.T) {
	t.Parallel()
	p, store, ready := connected(t, nil)
	tasks := make([]publisher.Task, 1500)
	payload := bytes.Repeat([]byte("x"), 10_000) // 15 MB in all
	ids := make([]int64, len(tasks))
	for i := range tasks {
		tasks[i] = publisher.Task{Scene: "s", Key: fmt.Sprint(i), Args: payload}
	}
	results, err := p.EnqueueMany(t.Context(), tasks)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if ids[i] = r.ID; !r.Created {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	if n := countTasks(t, store); n != len(tasks) {
		t.Errorf("%d tasks", n)
	}
	if got := get(t, store, ids[700]).Key; got != "700" {
		t.Errorf("results out of order: %s", got)
	}
	ready.wait(t, ids...)
}

func TestEnqueueTx(t *testing.T) {
	t.Parallel()
	p, store, ready := connected(t, nil)
	enqueue := func(t *testing.T, end func(*sql.Tx) error) []publisher.Result {
		t.Helper()
		tx, err := store.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		results, err := p.EnqueueTx(t.Context(), tx, publisher.Task{Scene: "s"}, publisher.Task{Scene: "s", Delay: 30 * 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if n := countTasks(t, store); n != 0 {
			t.Errorf("%d tasks visible before the commit", n)
		}
		if err := end(tx); err != nil {
			t.Fatal(err)
		}
		return results
	}
	rolled := enqueue(t, (*sql.Tx).Rollback)
	if _, err := store.Get(t.Context(), rolled[0].ID); !errors.Is(err, retry.ErrNotFound) {
		t.Errorf("after a rollback: %v", err)
	}
	done := enqueue(t, (*sql.Tx).Commit)
	if !undispatched(t, store, done[0].ID) {
		t.Error("the scan would not see the task of a caller that forgets Wake")
	}
	far := get(t, store, done[1].ID).DispatchAfter
	if err := p.Wake(t.Context(), rolled[0].ID, done[0].ID, done[1].ID); err != nil {
		t.Fatal(err)
	}
	ready.wait(t, done[0].ID)
	if undispatched(t, store, done[0].ID) {
		t.Error("the scan would wake the task again at once")
	}
	if now := get(t, store, done[1].ID).DispatchAfter; !now.Equal(far) {
		t.Errorf("a far task's dispatch time moved from %v to %v", far, now)
	}
	if _, ok := ready.get(rolled[0].ID); ok {
		t.Error("woke a task that does not exist")
	}
	if err := p.Wake(t.Context()); err != nil {
		t.Errorf("no ids: %v", err)
	}
}

func TestEnqueueTxConflict(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	if _, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: "k", Args: 1}); err != nil {
		t.Fatal(err)
	}
	tx, err := store.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	results, err := p.EnqueueTx(t.Context(), tx, publisher.Task{Scene: "s", Key: "k", Args: 2}, publisher.Task{Scene: "s", Key: "k2"})
	if !errors.Is(err, retry.ErrKeyConflict) || len(results) != 2 || results[0].Created || !results[1].Created {
		t.Errorf("%+v, %v", results, err)
	}
	_, err = p.EnqueueTx(t.Context(), tx, publisher.Task{Scene: "BAD"})
	checkField(t, err, "scene", "")
	if err := tx.Commit(); err != nil {
		t.Errorf("the transaction is broken: %v", err)
	}
	if n := countTasks(t, store); n != 2 {
		t.Errorf("%d tasks", n)
	}
}

func TestEnqueueCancelled(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Enqueue(ctx, publisher.Task{Scene: "s"}); err == nil {
		t.Error("enqueued")
	}
	if _, err := p.EnqueueMany(ctx, []publisher.Task{{Scene: "s"}}); err == nil {
		t.Error("enqueued")
	}
	if n := countTasks(t, store); n != 0 {
		t.Errorf("%d tasks", n)
	}
}

func TestFarTasksStayInPostgres(t *testing.T) {
	t.Parallel()
	p, store, ready := connected(t, nil)
	far, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Delay: 60 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	near, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s"})
	if err != nil {
		t.Fatal(err)
	}
	ready.wait(t, near.ID) // published after it, had that been published
	if _, ok := ready.get(far.ID); ok {
		t.Error("woken 60 days early")
	}
	task := get(t, store, far.ID)
	if ahead := task.NextAt.Sub(task.DispatchAfter); ahead <= 0 || ahead > persistence.DefaultHorizon {
		t.Errorf("to be dispatched %v ahead", ahead)
	}
}

func TestWakeUpMessage(t *testing.T) {
	t.Parallel()
	p, store, ready := connected(t, nil)
	for _, delay := range []time.Duration{0, 100 * time.Millisecond, 1250 * time.Millisecond} {
		r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "mail.send", Delay: delay})
		if err != nil {
			t.Fatal(err)
		}
		returned := time.Now()
		ready.wait(t, r.ID)
		a, _ := ready.get(r.ID)
		if want := fmt.Sprintf(`{"id":%d,"scene":"mail.send"}`, r.ID); string(a.Body) != want || a.ContentType != "application/json" ||
			a.MessageId != fmt.Sprint(r.ID) || a.DeliveryMode != 2 {
			t.Errorf("got %+v with %s", a.Delivery, a.Body)
		}
		// Same machine, same clock as the database's. 50 ms is a claim's slack.
		task := get(t, store, r.ID)
		if late := a.at.Sub(task.NextAt); late < -50*time.Millisecond || a.at.Sub(returned) > delay+5*time.Second {
			t.Errorf("delay %v: woken %v after the due time", delay, late)
		}
		if undispatched(t, store, r.ID) {
			t.Error("a delivered task counts as lost")
		}
	}
}

func TestEnqueueConcurrently(t *testing.T) {
	t.Parallel()
	p, store, ready := connected(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{fast(retry.Scene{Name: "s", Unknown: retry.UnknownRepeat})}
	})
	const workers, rounds = 16, 12
	ids := make([][]int64, workers)
	parallel(t, workers, func(w int) error {
		for i := range rounds {
			key := fmt.Sprintf("%d/%d", w, i)
			r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Key: key + "/one"})
			if err != nil {
				return err
			}
			many, err := p.EnqueueMany(t.Context(), []publisher.Task{{Scene: "s", Key: key + "/many"}, {Scene: "s", Key: fmt.Sprintf("shared/%d", i)}})
			if err != nil {
				return err
			}
			call, _ := failing(errBoom)
			err = p.Do(t.Context(), publisher.Task{Scene: "s", Key: key + "/do"}, call)
			var esc *retry.EscalatedError
			if !errors.As(err, &esc) {
				return fmt.Errorf("do: %w", err)
			}
			if err := p.Wake(t.Context(), r.ID); err != nil {
				return err
			}
			ids[w] = append(ids[w], r.ID, many[0].ID, many[1].ID, esc.TaskID)
		}
		return nil
	})
	all := map[int64]bool{}
	for _, list := range ids {
		for _, id := range list {
			all[id] = true
		}
		ready.wait(t, list...)
	}
	if want := workers*rounds*3 + rounds; len(all) != want || countTasks(t, store) != want {
		t.Errorf("%d tasks, stored %d, want %d", len(all), countTasks(t, store), want)
	}
}
