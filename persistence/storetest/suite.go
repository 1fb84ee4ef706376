package storetest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// Column is a time of a task that a test may move.
type Column string

// The columns, named as in the schema.
const (
	CreatedAt     Column = "created_at"
	NextAt        Column = "next_at"
	DispatchAfter Column = "dispatch_after"
	LeaseUntil    Column = "lease_until"
	DeadlineAt    Column = "deadline_at"
	FinishedAt    Column = "finished_at"
)

// Fixture is a store and a hand inside it. Tests travel in time by moving a row's
// times; they never sleep.
type Fixture struct {
	// Store of Service, empty.
	Store persistence.Store
	// Other is a store of another service in the same database.
	Other persistence.Store
	// Horizon that both were opened with.
	Horizon time.Duration
	// Shift moves a time of a task by d.
	Shift func(t testing.TB, id int64, c Column, d time.Duration)
	// DropLease makes lease_until NULL, as a person's hand might.
	DropLease func(t testing.TB, id int64)
	// ShiftMessages moves the times at which Service's messages were taken.
	ShiftMessages func(t testing.TB, d time.Duration)
	// Messages is how many messages of Service are remembered.
	Messages func(t testing.TB) int
	// ShiftWorkflow moves a workflow's deadline of Service.
	ShiftWorkflow func(t testing.TB, name string, d time.Duration)
	// Begin opens a transaction of the caller's.
	Begin func(t testing.TB) CallerTx
	// Now is the database's clock.
	Now func(t testing.TB) time.Time
	// Empty removes all tasks and their journals.
	Empty func(t testing.TB)
	// Lossy returns Store once more, over a single connection that loses an answer on demand: lose(n) loses the n-th
	// from now on, 0 takes that back. What was asked for was done, and the driver asks again.
	Lossy func(t testing.TB) (s persistence.Store, lose func(n int))
}

// CallerTx is a caller's transaction; *sql.Tx is one.
type CallerTx interface {
	persistence.Tx
	Commit() error
	Rollback() error
}

// Postgres returns the Fixture of the store on Postgres, in a schema of its own.
func Postgres(t testing.TB) Fixture {
	t.Helper()
	schema := Schema(t)
	s := OpenConfig(t, persistence.Config{Schema: schema})
	exec := func(t testing.TB, query string, args ...any) {
		t.Helper()
		res, err := s.DB().ExecContext(t.Context(), query, args...)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			t.Fatalf("%s: %d rows, %v", query, n, err)
		}
	}
	return Fixture{
		Store:   s,
		Other:   OpenConfig(t, persistence.Config{Schema: schema, Service: "other"}),
		Horizon: persistence.DefaultHorizon,
		Shift: func(t testing.TB, id int64, c Column, d time.Duration) {
			t.Helper()
			exec(t, fmt.Sprintf(`UPDATE %s.task SET %s = %s + $2::bigint * interval '1 microsecond' WHERE id = $1`, schema, c, c), id, d.Microseconds())
		},
		DropLease: func(t testing.TB, id int64) {
			t.Helper()
			exec(t, `UPDATE `+schema+`.task SET lease_until = NULL WHERE id = $1`, id)
		},
		ShiftMessages: func(t testing.TB, d time.Duration) {
			t.Helper()
			query := `UPDATE ` + schema + `.submission SET at = at + $1::bigint * interval '1 microsecond' WHERE service = 'test'`
			if _, err := s.DB().ExecContext(t.Context(), query, d.Microseconds()); err != nil {
				t.Fatal(err)
			}
		},
		Messages: func(t testing.TB) (n int) {
			t.Helper()
			if err := s.DB().GetContext(t.Context(), &n, `SELECT count(*) FROM `+schema+`.submission WHERE service = 'test'`); err != nil {
				t.Fatal(err)
			}
			return n
		},
		ShiftWorkflow: func(t testing.TB, name string, d time.Duration) {
			t.Helper()
			exec(t, `UPDATE `+schema+`.workflow SET deadline_at = deadline_at + $2::bigint * interval '1 microsecond' WHERE service = 'test' AND name = $1`, name, d.Microseconds())
		},
		Begin: func(t testing.TB) CallerTx {
			t.Helper()
			tx, err := s.DB().BeginTx(t.Context(), &sql.TxOptions{})
			if err != nil {
				t.Fatalf("begin: %v", err)
			}
			return tx
		},
		Now: func(t testing.TB) time.Time {
			t.Helper()
			var now time.Time
			if err := s.DB().QueryRowContext(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
				t.Fatalf("read the clock: %v", err)
			}
			return now
		},
		Empty: func(t testing.TB) {
			t.Helper()
			for _, table := range []string{"task", "retry_event", "workflow", "submission"} {
				if _, err := s.DB().ExecContext(t.Context(), `DELETE FROM `+schema+`.`+table); err != nil {
					t.Fatalf("empty %s: %v", table, err)
				}
			}
		},
		Lossy: func(t testing.TB) (persistence.Store, func(int)) {
			t.Helper()
			p, dsn := NewLossy(t)
			s := p.Store(dsn, schema)
			return s, func(n int) {
				if n > 0 { // a live connection, or the answers to its start would count
					if err := s.Ping(t.Context()); err != nil {
						t.Fatalf("connect: %v", err)
					}
				}
				p.CutAt(n)
			}
		},
	}
}

// Run runs the suite. open is called once for each test; the tests run in parallel.
func Run(t *testing.T, open func(t testing.TB) Fixture) {
	t.Helper()
	tests := []struct {
		name string
		run  func(h *harness)
	}{}
	add := func(name string, run func(h *harness)) {
		tests = append(tests, struct {
			name string
			run  func(h *harness)
		}{name, run})
	}
	insertTests(add)
	keyTests(add)
	recordTests(add)
	submitTests(add)
	claimTests(add)
	finishTests(add)
	phaseTests(add)
	expireTests(add)
	dispatchTests(add)
	readTests(add)
	operateTests(add)
	upkeepTests(add)
	concurrencyTests(add)
	modelTests(add)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(&harness{T: t, Fixture: open(t), ctx: t.Context()})
		})
	}
}

type adder func(name string, run func(h *harness))

// scene that the suite's tasks have unless they say otherwise.
const scene = "scene.a"

// harness is a test and its store, with what most tests need.
type harness struct {
	*testing.T
	Fixture
	ctx context.Context
}

// ok ends the test on an error.
func (h *harness) ok(err error) {
	h.Helper()
	if err != nil {
		h.Fatalf("unexpected error: %v", err)
	}
}

// is wants err to be target.
func (h *harness) is(err, target error) {
	h.Helper()
	if !errors.Is(err, target) {
		h.Errorf("error is %v, want %v", err, target)
	}
}

func same[T comparable](h *harness, what string, got, want T) {
	h.Helper()
	if got != want {
		h.Errorf("%s is %v, want %v", what, got, want)
	}
}

// near wants got within a second of want: the time that passes between a statement and
// the next is not the store's.
func (h *harness) near(what string, got, want time.Duration) {
	h.Helper()
	if d := got - want; d < -time.Second || d > time.Second {
		h.Errorf("%s is %v, want about %v", what, got, want)
	}
}

func (h *harness) insert(tasks ...persistence.NewTask) []persistence.Inserted {
	h.Helper()
	for i := range tasks {
		if tasks[i].Scene == "" {
			tasks[i].Scene = scene
		}
	}
	in, err := h.Store.Insert(h.ctx, tasks)
	h.ok(err)
	if len(in) != len(tasks) {
		h.Fatalf("%d tasks inserted, %d answers", len(tasks), len(in))
	}
	return in
}

// add stores n tasks that are due and returns their ids.
func (h *harness) add(n int) []int64 {
	h.Helper()
	var ids []int64
	for _, in := range h.insert(make([]persistence.NewTask, n)...) {
		ids = append(ids, in.ID)
	}
	return ids
}

// claim claims ids with a fresh token and returns what was claimed, by id.
func (h *harness) claim(ids ...int64) (string, []persistence.Claimed) {
	h.Helper()
	token := uuid.NewString()
	return token, h.claimAs(token, ids...)
}

func (h *harness) claimAs(token string, ids ...int64) []persistence.Claimed {
	h.Helper()
	got, err := h.Store.Claim(h.ctx, persistence.ClaimRequest{IDs: ids, Scenes: []string{scene}, Token: token, By: "worker", Lease: time.Minute})
	h.ok(err)
	slices.SortFunc(got, func(a, b persistence.Claimed) int { return cmp.Compare(a.ID, b.ID) })
	return got
}

// held stores a task and claims it.
func (h *harness) held() persistence.Claim {
	h.Helper()
	return h.take(h.add(1)[0])
}

// take claims a task that must be due.
func (h *harness) take(id int64) persistence.Claim {
	h.Helper()
	token, got := h.claim(id)
	if len(got) != 1 {
		h.Fatalf("task %d is not claimed: %+v", id, h.get(id))
	}
	return persistence.Claim{ID: id, Token: token}
}

func (h *harness) get(id int64) retry.Task {
	h.Helper()
	t, err := h.Store.Get(h.ctx, id)
	h.ok(err)
	return t
}

func (h *harness) events(id int64) []persistence.Event {
	h.Helper()
	e, err := h.Store.Events(h.ctx, id)
	h.ok(err)
	return e
}

func (h *harness) finish(r ...persistence.Result) []persistence.Finished {
	h.Helper()
	f, err := h.Store.Finish(h.ctx, r)
	h.ok(err)
	if len(f) != len(r) {
		h.Fatalf("%d results, %d answers", len(r), len(f))
	}
	for i := range f {
		if f[i].ID != r[i].ID {
			h.Fatalf("answer %d is about %d, want %d", i, f[i].ID, r[i].ID)
		}
	}
	return f
}

// end finishes a claim as status, with the reason that fits.
func (h *harness) end(c persistence.Claim, s retry.Status) bool {
	h.Helper()
	return h.finish(result(c, s))[0].Applied
}

func result(c persistence.Claim, s retry.Status) persistence.Result {
	r := persistence.Result{Claim: c, Status: s}
	switch s {
	case retry.StatusSuccess:
		r.Reason = retry.ReasonSuccess
	case retry.StatusWait:
		r.Reason, r.Class, r.Error = retry.ReasonScheduleRetry, retry.ClassTransient, "later"
	case retry.StatusManualReview:
		r.Reason, r.Class, r.Error, r.Unknown = retry.ReasonManualReview, retry.ClassUnknown, "who knows", true
	default:
		r.Reason, r.Class, r.Error = retry.ReasonFailPermanent, retry.ClassPermanent, "never"
	}
	return r
}

// in puts a fresh task into a state and returns it with the claim that it has or
// last had.
func (h *harness) in(s retry.Status) persistence.Claim {
	h.Helper()
	if s == retry.StatusWait {
		return persistence.Claim{ID: h.add(1)[0]}
	}
	c := h.held()
	switch s {
	case retry.StatusExecuting:
	case retry.StatusCancelled:
		_, err := h.Store.Operate(h.ctx, persistence.Action{Verb: persistence.Cancel, ID: c.ID, Actor: "ann"})
		h.ok(err)
	default:
		h.end(c, s)
	}
	same(h, "status", h.get(c.ID).Status, s)
	return c
}

func (h *harness) expired() []persistence.Expired {
	h.Helper()
	e, err := h.Store.Expired(h.ctx, []string{scene}, 0, 1000)
	h.ok(err)
	return e
}

func (h *harness) undispatched() map[int64]persistence.Wake {
	h.Helper()
	list, err := h.Store.Undispatched(h.ctx, 1000)
	h.ok(err)
	out := map[int64]persistence.Wake{}
	for _, w := range list {
		out[w.ID] = w
	}
	return out
}
