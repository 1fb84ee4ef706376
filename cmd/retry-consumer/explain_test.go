package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/reaper"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// testStore opens the store that the commands see.
func testStore(t *testing.T) *persistence.Postgres {
	t.Helper()
	store, err := persistence.Open(persistence.Config{
		DSN: os.Getenv(varDSN), Service: os.Getenv(varService), Schema: os.Getenv("SPILLWAY_POSTGRES_SCHEMA"), Horizon: topology.Horizon,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// sql runs a statement in which {s} is the schema, and wants it to change a row.
func sql(t *testing.T, store *persistence.Postgres, stmt string, args ...any) {
	t.Helper()
	r, err := store.DB().ExecContext(t.Context(), strings.ReplaceAll(stmt, "{s}", os.Getenv("SPILLWAY_POSTGRES_SCHEMA")), args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		t.Fatalf("%s changed %d rows, %v", stmt, n, err)
	}
}

// troubledTask has the real pipeline write a journal: an inline run that fails, a consumer that dies, an error, a Retry-After, success.
func troubledTask(t *testing.T, store *persistence.Postgres) int64 {
	t.Helper()
	service, scene := os.Getenv(varService), retry.Scene{
		Name: "mail.send", Unknown: retry.UnknownRepeat, Local: retry.Local{Pause: -1},
		Policy: retry.Policy{Kind: retry.Exponential, Base: 100 * time.Millisecond, Cap: time.Second, MaxAttempts: 4},
	}
	pub, err := publisher.New(publisher.Config{Service: service, Store: store, AMQPURL: os.Getenv(varAMQP), Scenes: []retry.Scene{scene}})
	if err != nil {
		t.Fatal(err)
	}
	err = pub.Do(t.Context(), publisher.Task{Scene: scene.Name, Key: "m 1"}, func(context.Context) error { return retry.Transient(errors.New("refused")) })
	var escalated *retry.EscalatedError
	if !errors.As(err, &escalated) {
		t.Fatal(err)
	}
	if err := pub.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := escalated.TaskID
	run(t, "explain", fmt.Sprint(id)).want(t, exitOK, "attempt 1 is due ", "because the inline run failed and a wait of ", "1 decision was made again, all match")

	// A consumer that dies: its lease runs out, and the scan decides.
	waitFor(t, "claim", func() bool {
		c, err := store.Claim(t.Context(), persistence.ClaimRequest{
			IDs: []int64{id}, Scenes: []string{scene.Name}, Token: uuid.NewString(), By: "doomed", Lease: time.Millisecond,
		})
		return err == nil && len(c) == 1
	})
	run(t, "explain", fmt.Sprint(id)).want(t, exitOK, "attempt 1 runs at doomed", "with the outcome unknown")
	scan, err := reaper.New(reaper.Config{
		Store: store, Scenes: []retry.Scene{scene}, Grid: topology.Grid(), Name: "scanner",
		Publish: func(_ context.Context, wakes []persistence.Wake) ([]bool, error) {
			return make([]bool, len(wakes)), nil
		},
		Depth: func(context.Context) (int, error) { return 0, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "expiry", func() bool {
		s, _ := scan.Scan(t.Context())
		return s.Expired == 1
	})
	if err := store.Resign(t.Context(), "scanner"); err != nil {
		t.Fatal(err)
	}

	c, err := consumer.New(consumer.Config{Service: service, Store: store, AMQPURL: os.Getenv(varAMQP), Declare: true, ScanInterval: time.Second},
		consumer.Handle(scene, func(_ context.Context, job *consumer.Job[[]byte]) error {
			switch job.Attempt {
			case 2:
				return retry.Transient(errors.New("busy"))
			case 3:
				return retry.After(1300*time.Millisecond, retry.Transient(errors.New("status 429")))
			}
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	// The scan's wake-up went nowhere; this one comes.
	if _, err := store.Operate(t.Context(), persistence.Action{Verb: persistence.Retry, ID: id, Actor: "ada"}); err != nil {
		t.Fatal(err)
	}
	if err := store.Undelivered(t.Context(), []int64{id}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "success", func() bool {
		task, err := store.Get(t.Context(), id)
		return err == nil && task.Status == retry.StatusSuccess
	})
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return id
}

func TestExplain(t *testing.T) {
	servers(t)
	run(t, "migrate", "up").want(t, exitOK)
	run(t, "topology", "declare").want(t, exitOK)
	store := testStore(t)
	number := troubledTask(t, store)
	id := fmt.Sprint(number)

	r := run(t, "explain", id).want(t, exitOK,
		"timeline", "the inline run failed (transient)", "attempt 1 ended without a word", "made due now by ada", "attempt 4 succeeded",
		"the inline run (attempt 0): schedule_retry", "policy       version 1 of mail.send: EXPONENTIAL from 100ms to 1s, 4 attempts",
		"100ms (EXPONENTIAL: 100ms × 2^0, at most 1s), charged attempt 1", fmt.Sprintf("the hash of %q", id+":3"),
		"Retry-After  1.3s: longer, so it counts", "delay        1.3s, from 1.3s rounded up", "nothing: it is done",
		"4 decisions were made again, all match")
	if strings.Contains(r.out, "DOES NOT MATCH") {
		t.Errorf("%s", r.out)
	}
	type document struct {
		ID      int64               `json:"id"`
		Matches bool                `json:"matches"`
		Rows    []explain.Row       `json:"rows"`
		Journal []persistence.Event `json:"journal"`
		Next    string              `json:"next"`
	}
	docs := decode[[]document](t, run(t, "explain", "-o", "json", id).want(t, exitOK))
	if len(docs) != 1 || docs[0].ID != number || !docs[0].Matches || len(docs[0].Rows) != 5 || len(docs[0].Journal) != 5 || docs[0].Next == "" || docs[0].Rows[0].Parts == nil {
		t.Errorf("got %s", run(t, "explain", "-o", "json", id).out)
	}

	const decision = `UPDATE {s}.retry_event SET decision = jsonb_set(decision, '{delay}', to_jsonb((decision->>'delay')::bigint + $2::bigint)) WHERE task_id = $1 AND attempt = 2`
	const rules = `UPDATE {s}.policy SET rules = jsonb_set(rules, '{policy,base}', to_jsonb($1::bigint)) WHERE scene = 'mail.send'`
	for _, tt := range []struct {
		name       string
		stmt, undo string
		args, back []any
		want       []string
	}{
		{"delay", decision, decision, []any{number, 1_000_000}, []any{number, -1_000_000}, []string{"DOES NOT MATCH: delay: recorded ", "1 thing does not match"}},
		{"policy", rules, rules, []any{int64(300 * time.Millisecond)}, []any{int64(100 * time.Millisecond)}, []string{"EXPONENTIAL from 300ms", "DOES NOT MATCH: ceiling: recorded 100ms, recomputed 300ms"}},
		{
			"policy gone", `UPDATE {s}.policy SET version = 9`, `UPDATE {s}.policy SET version = 1`, nil, nil,
			[]string{"DOES NOT MATCH: cannot be checked: policy version 1 of mail.send is missing", "4 things do not match"},
		},
		{
			"attempt", `UPDATE {s}.retry_event SET attempt = 3 WHERE task_id = $1 AND attempt = 2`,
			`UPDATE {s}.retry_event SET attempt = 2 WHERE task_id = $1 AND (facts->>'attempt') = '2'`, []any{number}, []any{number},
			[]string{"DOES NOT MATCH: the facts are those of attempt 2, the row's is 3"},
		},
		{
			"reason", `UPDATE {s}.retry_event SET reason = 'fail_permanent' WHERE task_id = $1 AND attempt = 2`,
			`UPDATE {s}.retry_event SET reason = 'schedule_retry' WHERE task_id = $1 AND attempt = 2`, []any{number}, []any{number},
			[]string{"DOES NOT MATCH: the row's reason is fail_permanent, its decision's schedule_retry"},
		},
	} {
		sql(t, store, tt.stmt, tt.args...)
		run(t, "explain", id).want(t, exitFailed, tt.want...)
		if docs := decode[[]document](t, run(t, "explain", "-o", "json", id).want(t, exitFailed)); docs[0].Matches {
			t.Errorf("%s: matches is true", tt.name)
		}
		sql(t, store, tt.undo, tt.back...)
		run(t, "explain", id).want(t, exitOK)
	}
	sql(t, store, `DELETE FROM {s}.retry_event WHERE task_id = $1 AND reason = 'operator_retry'`, number)
	run(t, "explain", id).want(t, exitFailed, "runs that ended without a word, the journal has 1", "the facts' deadline is")
}

func TestExplainTasksWithoutDecisions(t *testing.T) {
	servers(t)
	run(t, "migrate", "up").want(t, exitOK)
	run(t, "topology", "declare").want(t, exitOK)
	t.Setenv("USER", "ada")
	waits := fmt.Sprint(publishTask(t, "--scene", "mail.send", "--delay", "2h"))
	ended := fmt.Sprint(publishTask(t, "--scene", "mail.send", "--delay", "1h"))
	run(t, "tasks", "cancel", ended).want(t, exitOK)
	run(t, "explain", waits, ended).want(t, exitOK, "enqueued", "attempt 1 is due at ", "in 1h59m, as it was enqueued; the scan publishes its wake-up from ",
		"nothing was decided yet", "nothing: it ended (operator_cancel)")
	run(t, "tasks", "retry", waits).want(t, exitOK)
	run(t, "explain", waits).want(t, exitOK, "because a person made it due", "the scan sends another from ")
	// One that is not there does not hide the others.
	run(t, "explain", "999999", ended).want(t, exitFailed, "task "+ended, "not found", "999999")
	run(t, "explain").want(t, exitUsage, "requires at least 1 arg")
	run(t, "explain", "x").want(t, exitUsage, `task id: "x" is not allowed`)
	run(t, "explain", "--output", "xml", ended).want(t, exitUsage, "must be table or json")

	// A journal that does not lead to the task.
	store := testStore(t)
	sql(t, store, `UPDATE {s}.task SET status = 'FAILED', stop_reason = 'fail_permanent' WHERE id = $1`, ended)
	run(t, "explain", ended).want(t, exitFailed, "DOES NOT MATCH: the task is FAILED, its journal ends in CANCELLED")
}

// moving is a store whose task ends while its journal is read: the first read of the rows misses the last one.
type moving struct {
	persistence.Store
	gets, reads int
}

func (m *moving) Get(context.Context, int64) (retry.Task, error) {
	m.gets++
	t := retry.Task{ID: 1, Scene: "mail.send", Status: retry.StatusWait, LeaseUntil: new(time.Unix(int64(m.gets), 0))}
	if m.gets > 1 {
		t.Status, t.StopReason = retry.StatusCancelled, retry.ReasonOperatorCancel
	}
	return t, nil
}

func (m *moving) Events(context.Context, int64) ([]persistence.Event, error) {
	m.reads++
	if m.reads == 1 {
		return nil, nil
	}
	return []persistence.Event{{From: retry.StatusWait, To: retry.StatusCancelled, Reason: retry.ReasonOperatorCancel}}, nil
}

func TestExplainReadsAMovingTaskAgain(t *testing.T) {
	m := &moving{}
	j, err := readJournal(t.Context(), m, 1)
	if err != nil || m.reads != 2 {
		t.Fatalf("%d reads, %v", m.reads, err)
	}
	if r := explain.Recheck(j); !r.Matches {
		t.Errorf("%+v", r)
	}
}
