package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

// script plays the four handlers: each call takes the next word of its handler's list and notes
// "handler=word". The last word repeats.
type script struct {
	check, query, execute, callback string

	mu    sync.Mutex
	calls []string
	hang  chan struct{} // "hang" waits for it
}

func (s *script) next(handler, words string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if strings.HasPrefix(c, handler+"=") {
			n++
		}
	}
	list := strings.Fields(words)
	word := list[min(n, len(list)-1)]
	s.calls = append(s.calls, handler+"="+word)
	return word
}

func (s *script) seen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.calls, " ")
}

// verdict is what a word means: ok, a class, an answer, panic or hang.
func (s *script) verdict(ctx context.Context, handler, words string) (word string, err error) {
	word = s.next(handler, words)
	switch word {
	case "transient":
		return "", retry.Transient(errors.New(handler + " is busy"))
	case "permanent":
		return "", retry.Permanent(errors.New(handler + " refuses"))
	case "unknown":
		return "", errors.New(handler + " broke off")
	case "panic":
		panic(handler + " blew up")
	case "late": // that it did not take effect
		<-s.hang
		return string(retry.NoEffect), nil
	case "hang":
		select {
		case <-s.hang:
		case <-ctx.Done():
		}
		return "", ctx.Err()
	}
	return word, nil
}

func (s *script) handler(scene retry.Scene) consumer.Handler {
	steps := consumer.Steps[order]{Execute: func(ctx context.Context, _ *consumer.Job[order]) error {
		_, err := s.verdict(ctx, "execute", s.execute)
		return err
	}}
	if s.check != "" {
		steps.Check = func(ctx context.Context, _ *consumer.Job[order]) (retry.Progress, error) {
			word, err := s.verdict(ctx, "check", s.check)
			return retry.Progress(word), err
		}
	}
	if s.query != "" {
		steps.Query = func(ctx context.Context, _ *consumer.Job[order]) (retry.Answer, error) {
			word, err := s.verdict(ctx, "query", s.query)
			return retry.Answer(word), err
		}
	}
	if s.callback != "" {
		steps.Callback = func(ctx context.Context, _ *consumer.Job[order]) error {
			_, err := s.verdict(ctx, "callback", s.callback)
			return err
		}
	}
	return consumer.HandleSteps(scene, steps)
}

// asking is a quick scene that asks.
func asking(name string) retry.Scene {
	s := fast(name, retry.UnknownAsk)
	s.Policy.MaxAttempts = 3
	s.QueryPolicy = retry.Policy{Kind: retry.Fixed, Base: 10 * time.Millisecond, MaxAttempts: 4}
	s.CallbackPolicy = retry.Policy{Kind: retry.Fixed, Base: 10 * time.Millisecond, MaxAttempts: 3}
	return s
}

func (w *world) recheck(id int64) explain.Report {
	w.t.Helper()
	ctx := context.Background()
	j := explain.Journal{Task: w.get(id), Rules: map[int]retry.Rules{}}
	var err error
	if j.Events, err = w.store.Events(ctx, id); err != nil {
		w.t.Fatal(err)
	}
	for _, v := range explain.Versions(j.Events) {
		if j.Rules[v], err = w.store.Policy(ctx, j.Task.Scene, v); err != nil {
			w.t.Fatal(err)
		}
	}
	return explain.Recheck(j)
}

// Each row is a way through the handlers: what each says, which are called in which order, how the task ends.
func TestSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const success, failed, review = retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview
	type way struct {
		name      string
		script    *script
		calls     string
		status    retry.Status
		reason    retry.Reason
		phase     retry.Phase
		attempts  int
		uncharged int
	}
	ways := []way{
		{"execute alone", &script{query: "no_effect", execute: "ok"}, "execute=ok", success, "", retry.PhaseExecute, 1, 0},
		{"all at once", &script{check: "not_started", query: "no_effect", execute: "ok", callback: "ok"},
			"check=not_started execute=ok callback=ok", success, "", retry.PhaseCallback, 1, 0},
		{"check says done", &script{check: "done", query: "pending", execute: "ok", callback: "ok"}, "check=done callback=ok", success, "", retry.PhaseCallback, 1, 1},
		{"done, nothing to book", &script{check: "done", query: "pending", execute: "ok"}, "check=done", success, "", retry.PhaseExecute, 1, 1},
		{"in flight, it took effect", &script{check: "in_flight", query: "took_effect", execute: "ok", callback: "ok"},
			"check=in_flight query=took_effect callback=ok", success, "", retry.PhaseCallback, 1, 1},
		{"in flight, it did not", &script{check: "in_flight", query: "no_effect", execute: "ok", callback: "ok"},
			"check=in_flight query=no_effect execute=ok callback=ok", success, "", retry.PhaseCallback, 1, 0},
		{"check fails, then not started", &script{check: "unknown not_started", query: "no_effect", execute: "ok"},
			"check=unknown check=not_started execute=ok", success, "", retry.PhaseExecute, 2, 0},
		{"check fails for ever", &script{check: "panic", query: "no_effect", execute: "ok"}, "check=panic check=panic check=panic", failed, retry.ReasonAttemptsExhausted, retry.PhaseExecute, 3, 0},

		{"unknown, it took effect", &script{query: "took_effect", execute: "unknown", callback: "ok"}, "execute=unknown query=took_effect callback=ok", success, "", retry.PhaseCallback, 1, 0},
		{"a panic is unknown", &script{query: "took_effect", execute: "panic"}, "execute=panic query=took_effect", success, "", retry.PhaseExecute, 1, 0},
		{"unknown, it did not", &script{query: "no_effect", execute: "unknown ok"}, "execute=unknown query=no_effect execute=ok", success, "", retry.PhaseExecute, 2, 0},
		{"unknown, it never does", &script{query: "no_effect", execute: "unknown"},
			"execute=unknown query=no_effect execute=unknown query=no_effect execute=unknown query=no_effect", failed, retry.ReasonAttemptsExhausted, retry.PhaseExecute, 3, 0},
		{"pending, then took effect", &script{query: "pending pending took_effect", execute: "unknown", callback: "ok"},
			"execute=unknown query=pending query=pending query=took_effect callback=ok", success, "", retry.PhaseCallback, 3, 2},
		{"pending, then did not: executed in the same attempt", &script{query: "pending no_effect", execute: "unknown ok"},
			"execute=unknown query=pending query=no_effect execute=ok", success, "", retry.PhaseExecute, 2, 0},
		{"check is asked as well", &script{check: "not_started in_flight done", query: "pending", execute: "unknown", callback: "ok"},
			"check=not_started execute=unknown query=pending check=in_flight query=pending check=done callback=ok", success, "", retry.PhaseCallback, 3, 2},
		{"not started does not spare the question", &script{check: "not_started", query: "pending no_effect", execute: "unknown ok"},
			"check=not_started execute=unknown query=pending check=not_started query=no_effect execute=ok", success, "", retry.PhaseExecute, 2, 0},
		{"pending for ever", &script{query: "pending", execute: "unknown"}, "execute=unknown query=pending query=pending query=pending query=pending",
			review, retry.ReasonAttemptsExhausted, retry.PhaseQuery, 4, 3},
		{"cannot tell", &script{query: "cannot_tell", execute: "unknown"}, "execute=unknown query=cannot_tell", review, retry.ReasonManualReview, retry.PhaseQuery, 1, 0},
		{"a word that is none", &script{query: "perhaps", execute: "unknown"}, "execute=unknown query=perhaps", review, retry.ReasonManualReview, retry.PhaseQuery, 1, 0},
		{"query fails, then tells", &script{query: "unknown transient took_effect", execute: "unknown"},
			"execute=unknown query=unknown query=transient query=took_effect", success, "", retry.PhaseExecute, 3, 2},
		{"query refuses", &script{query: "permanent", execute: "unknown"}, "execute=unknown query=permanent", review, retry.ReasonFailPermanent, retry.PhaseQuery, 1, 0},

		{"a callback that fails is retried alone", &script{check: "not_started", query: "no_effect", execute: "ok", callback: "unknown panic ok"},
			"check=not_started execute=ok callback=unknown callback=panic callback=ok", success, "", retry.PhaseCallback, 3, 2},
		{"a callback that never works", &script{query: "no_effect", execute: "ok", callback: "transient"},
			"execute=ok callback=transient callback=transient callback=transient", review, retry.ReasonAttemptsExhausted, retry.PhaseCallback, 3, 2},
		{"a callback that refuses", &script{query: "no_effect", execute: "ok", callback: "permanent"}, "execute=ok callback=permanent", review, retry.ReasonFailPermanent, retry.PhaseCallback, 1, 0},
		{"execute fails, nothing is asked", &script{query: "took_effect", execute: "transient ok"}, "execute=transient execute=ok", success, "", retry.PhaseExecute, 2, 0},
		{"execute refuses", &script{query: "took_effect", execute: "permanent", callback: "ok"}, "execute=permanent", failed, retry.ReasonFailPermanent, retry.PhaseExecute, 1, 0},
	}
	var handlers []consumer.Handler
	var tasks []publisher.Task
	for i, way := range ways {
		name := fmt.Sprintf("way-%d", i)
		handlers = append(handlers, way.script.handler(asking(name)))
		tasks = append(tasks, publisher.Task{Scene: name, Args: order{i}})
	}
	// A scene that does not ask may have a Callback too.
	plain := &script{execute: "transient ok", callback: "transient ok"}
	booked := fast("booked", retry.UnknownRepeat)
	booked.CallbackPolicy = retry.Policy{Kind: retry.Fixed, Base: 10 * time.Millisecond, MaxAttempts: 3}
	handlers = append(handlers, plain.handler(booked))
	ways = append(ways, way{"a callback without ask", plain, "execute=transient execute=ok callback=transient callback=ok", success, "", retry.PhaseCallback, 3, 1})
	tasks = append(tasks, publisher.Task{Scene: "booked", Args: order{99}})
	// And Check may say what a scene without Query can only show to a person.
	shown := &script{check: "in_flight", execute: "ok"}
	handlers = append(handlers, shown.handler(fast("shown", "")))
	ways = append(ways, way{"in flight and nobody to ask", shown, "check=in_flight", review, retry.ReasonManualReview, retry.PhaseExecute, 1, 1})
	tasks = append(tasks, publisher.Task{Scene: "shown", Args: order{98}})

	w.start(w.config(), handlers...)
	for i, r := range w.enqueue(tasks...) {
		way := ways[i]
		got := w.await(r.ID, way.status)
		if calls := way.script.seen(); calls != way.calls {
			t.Errorf("%s: calls %s\nwant %s", way.name, calls, way.calls)
		}
		if got.StopReason != way.reason || got.Phase != way.phase || got.Attempt != way.attempts || got.Uncharged != way.uncharged {
			t.Errorf("%s: %s in %s after %d attempts, %d uncharged, want %s in %s after %d, %d", way.name, got.StopReason, got.Phase, got.Attempt, got.Uncharged,
				way.reason, way.phase, way.attempts, way.uncharged)
		}
		if r := w.recheck(r.ID); !r.Matches {
			t.Errorf("%s: the journal does not hold: %+v", way.name, r)
		}
	}
}

// A worker that dies in the middle: the other side is asked, and what is known is not done again.
func TestStepsAfterACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	crashed := func(phase retry.Phase) int64 {
		scene := "crash-" + string(phase)
		id := w.insert(persistence.NewTask{Scene: scene, Phase: phase})[0]
		claimed, err := w.store.Claim(context.Background(), persistence.ClaimRequest{IDs: []int64{id}, Scenes: []string{scene}, Token: "8f9e2a5c-58c7-4c53-8a10-000000000001", By: "doomed", Lease: time.Millisecond})
		if err != nil || len(claimed) != 1 {
			t.Fatalf("%v, %v", claimed, err)
		}
		return id
	}
	scripts := map[retry.Phase]*script{}
	var handlers []consumer.Handler
	ids := map[retry.Phase]int64{}
	for _, phase := range []retry.Phase{retry.PhaseExecute, retry.PhaseQuery, retry.PhaseCallback} {
		ids[phase] = crashed(phase)
		scripts[phase] = &script{check: "not_started", query: "took_effect", execute: "ok", callback: "ok"}
		handlers = append(handlers, scripts[phase].handler(asking("crash-"+string(phase))))
	}
	w.start(w.config(), handlers...)
	for phase, want := range map[retry.Phase]string{
		retry.PhaseExecute: "check=not_started query=took_effect callback=ok", retry.PhaseQuery: "check=not_started query=took_effect callback=ok", retry.PhaseCallback: "callback=ok",
	} {
		got := w.await(ids[phase], retry.StatusSuccess)
		if calls := scripts[phase].seen(); calls != want || got.Crashes != 1 || got.Attempt != 2 {
			t.Errorf("%s: calls %s, want %s (%d crashes, %d attempts)", phase, calls, want, got.Crashes, got.Attempt)
		}
		// The others were put into their phases without a row.
		if r := w.recheck(ids[phase]); !r.Matches && phase == retry.PhaseExecute {
			t.Errorf("%s: the journal does not hold: %+v", phase, r)
		}
	}
}

// A person says what the other side could not: it did not take effect.
func TestStepsAfterAPersonsWord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := &script{query: "cannot_tell", execute: "unknown ok", callback: "ok"}
	w.start(w.config(), s.handler(asking("word")))
	id := w.enqueue(publisher.Task{Scene: "word", Args: order{1}})[0].ID
	w.await(id, retry.StatusManualReview)
	act := func(phase retry.Phase, note string) {
		if _, err := w.store.Operate(context.Background(), persistence.Action{Verb: persistence.Retry, ID: id, Actor: "ada", Note: note, Phase: phase}); err != nil {
			t.Fatal(err)
		}
		w.wake("word", id)
	}
	act("", "ask again")
	testenv.Eventually(t, 20*time.Second, func() bool { return strings.Count(s.seen(), "query") == 2 }, "asked again")
	w.await(id, retry.StatusManualReview)
	act(retry.PhaseExecute, "their support says that nothing arrived")
	w.await(id, retry.StatusSuccess)
	if want := "execute=unknown query=cannot_tell query=cannot_tell execute=ok callback=ok"; s.seen() != want {
		t.Errorf("calls %s, want %s", s.seen(), want)
	}
	if r := w.recheck(id); !r.Matches {
		t.Errorf("the journal does not hold: %+v", r)
	}
}

// The timeout is each handler's own: an Execute that ran into it can still be asked about.
func TestTimeoutOfAStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := &script{query: "took_effect", execute: "hang", callback: "ok"}
	scene := asking("slow")
	scene.Timeout = 100 * time.Millisecond
	w.start(w.config(), s.handler(scene))
	w.await(w.enqueue(publisher.Task{Scene: "slow", Args: order{1}})[0].ID, retry.StatusSuccess)
	if want := "execute=hang query=took_effect callback=ok"; s.seen() != want {
		t.Errorf("calls %s, want %s", s.seen(), want)
	}
}

// A build whose scene lost a handler leaves the tasks that need it to a build that has it.
func TestPhaseWithoutAHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hurry[0] = 100 * time.Millisecond
	ids := w.insert(persistence.NewTask{Scene: "moved", Phase: retry.PhaseCallback}, persistence.NewTask{Scene: "moved", Phase: retry.PhaseQuery})
	old := &script{execute: "ok"}
	stop := w.start(w.config(), old.handler(fast("moved", "")))
	w.wake("moved", ids...)
	w.awaitEvents(consumer.EventReleased, 4)
	for _, id := range ids {
		if got := w.get(id); got.Status == retry.StatusSuccess || got.Attempt > 1 {
			t.Errorf("%+v", got)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	whole := &script{query: "took_effect", execute: "ok", callback: "ok"}
	w.start(w.config(), whole.handler(asking("moved")))
	for _, id := range ids {
		if got := w.await(id, retry.StatusSuccess); got.Attempt != 1 {
			t.Errorf("%+v", got)
		}
	}
	calls := strings.Fields(whole.seen())
	slices.Sort(calls)
	if got := strings.Join(calls, " "); got != "callback=ok callback=ok query=took_effect" || old.seen() != "" {
		t.Errorf("calls %s, and %s of the old build", got, old.seen())
	}
}

// A stop in the middle of a Callback that hangs does not put the effect in doubt.
func TestStopDuringACallback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := &script{query: "no_effect", execute: "ok", callback: "hang"}
	cfg := w.config()
	cfg.Grace = -1
	stop := w.start(cfg, first.handler(asking("stopped")))
	id := w.enqueue(publisher.Task{Scene: "stopped", Args: order{1}})[0].ID
	testenv.Eventually(t, 20*time.Second, func() bool { return strings.HasSuffix(first.seen(), "callback=hang") }, "the callback runs")
	if got := w.get(id); got.Phase != retry.PhaseCallback || got.Status != retry.StatusExecuting {
		t.Errorf("while the callback runs: %+v", got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	second := &script{query: "no_effect", execute: "ok", callback: "ok"}
	w.start(w.config(), second.handler(asking("stopped")))
	w.await(id, retry.StatusSuccess)
	if second.seen() != "callback=ok" {
		t.Errorf("calls %s", second.seen())
	}
}

// The effect is written down before it is booked, also where Postgres is away for a moment in between.
func TestPostgresAwayBetweenExecuteAndCallback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy, store := w.through()
	cfg := w.config()
	cfg.Store = store
	s := &script{query: "no_effect", execute: "hang", callback: "ok", hang: make(chan struct{})}
	w.start(cfg, s.handler(asking("between")))
	id := w.enqueue(publisher.Task{Scene: "between", Args: order{1}})[0].ID
	testenv.Eventually(t, 20*time.Second, func() bool { return s.seen() != "" }, "execute runs")
	proxy.Refuse()
	proxy.Cut()
	close(s.hang)
	w.awaitNever(func() bool { return strings.Contains(s.seen(), "callback") })
	proxy.Accept()
	w.await(id, retry.StatusSuccess)
	if s.seen() != "execute=hang callback=ok" {
		t.Errorf("calls %s", s.seen())
	}
}

// Query's word is not lost with Postgres: where no step can be written down before the lease is over, it goes into the
// attempt's end, and Execute follows in the next.
func TestPostgresAwayBetweenQueryAndExecute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy, store := w.through()
	cfg := w.config()
	cfg.Store = store
	s := &script{query: "pending late", execute: "unknown ok", hang: make(chan struct{})}
	w.start(cfg, s.handler(asking("word")))
	id := w.enqueue(publisher.Task{Scene: "word", Args: order{1}})[0].ID
	testenv.Eventually(t, 20*time.Second, func() bool { return strings.HasSuffix(s.seen(), "query=late") }, "query runs")
	proxy.Refuse()
	proxy.Cut()
	close(s.hang)
	testenv.Eventually(t, 20*time.Second, func() bool { return w.get(id).LeaseUntil.Before(time.Now().Add(-time.Second)) }, "the lease is over")
	proxy.Accept()
	w.await(id, retry.StatusSuccess)
	if want := "execute=unknown query=pending query=late execute=ok"; s.seen() != want {
		t.Errorf("calls %s, want %s", s.seen(), want)
	}
	if r := w.recheck(id); !r.Matches {
		t.Errorf("the journal does not hold: %+v", r)
	}
}

// awaitNever looks for half a second.
func (w *world) awaitNever(cond func() bool) {
	w.t.Helper()
	timeout := time.After(500 * time.Millisecond)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if cond() {
			w.t.Error("called before it was written down")
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			return
		}
	}
}
