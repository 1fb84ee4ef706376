package persistence_test

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/retry"
)

// At a million rows every statement of the hot path and every scan finds its rows
// by an index. The statements are those that the methods ran just before, with the
// same parameters; each is also planned without knowing them, as a server
// does once it caches a plan.
func TestPlansAtAMillionRows(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a table with a million rows")
	}
	schema := storetest.Schema(t)
	s, plain := admin(t, schema), admin(t, schema)
	start := time.Now()
	fill(t, plain, schema)
	t.Logf("filled in %v", time.Since(start).Round(time.Millisecond))

	type statement struct {
		query string
		args  []driver.NamedValue
	}
	var ran []statement
	s.Record(t, func(query string, args []driver.NamedValue) {
		if len(args) > 0 { // not BEGIN and the like
			ran = append(ran, statement{query, slices.Clone(args)})
		}
	})

	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// Fresh parts of the table for each use: ids that are i modulo 10 for i from 0 to 6 wait.
	next := int64(1000)
	waiting := func(n int) []int64 {
		var ids []int64
		for ; len(ids) < n; next += 10 {
			// 6 modulo 10 waits and is due.
			ids = append(ids, next+6)
		}
		return ids
	}
	scenes := []string{"s0", "s1", "s2", "s3", "s4"}
	claim := func(n int) []persistence.Claim {
		t.Helper()
		token := uuid.NewString()
		got, err := s.Claim(ctx, persistence.ClaimRequest{IDs: waiting(n), Scenes: scenes, Token: token, By: "w", Lease: time.Minute})
		ok(err)
		if len(got) != n {
			t.Fatalf("%d tasks claimed, want %d", len(got), n)
		}
		var out []persistence.Claim
		for _, c := range got {
			out = append(out, persistence.Claim{ID: c.ID, Token: token})
		}
		return out
	}
	results := func(claims []persistence.Claim) []persistence.Result {
		var out []persistence.Result
		for _, c := range claims {
			out = append(out, persistence.Result{Claim: c, Status: retry.StatusWait, Reason: retry.ReasonScheduleRetry, Delay: time.Hour, Error: "boom", Class: retry.ClassTransient,
				Event: &persistence.Event{Actor: "w", Facts: &retry.Facts{}, Decision: &retry.Decision{}}})
		}
		return out
	}
	const pkey, key, waits, held, finished, events = "task_pkey", "task_key", "task_waiting", "task_held", "task_finished", "retry_event_task"
	for _, n := range []int{1, 100, 1000} {
		for _, tt := range []struct {
			name    string
			run     func() // prepares what it needs, then empties ran and runs
			indexes []string
		}{
			{"claim", func() { claim(n) }, []string{pkey}},
			{"renew", func() {
				c := claim(n)
				ran = nil
				kept, err := s.Renew(ctx, time.Hour, c)
				if ok(err); len(kept) != n {
					t.Errorf("%d kept, want %d", len(kept), n)
				}
			}, []string{pkey}},
			{"finish", func() {
				c := claim(n)
				ran = nil
				got, err := s.Finish(ctx, results(c))
				if ok(err); !got[0].Applied || !got[n-1].Applied {
					t.Error("finish was not applied")
				}
			}, []string{pkey}},
			{"finish of lost claims", func() {
				c := claim(n)
				for i := range c {
					c[i].Token = uuid.NewString()
				}
				ran = nil
				_, err := s.Finish(ctx, results(c))
				ok(err)
			}, []string{pkey}},
			{"release", func() {
				c := claim(n)
				ran = nil
				got, err := s.Release(ctx, c)
				if ok(err); len(got) != n {
					t.Errorf("%d released, want %d", len(got), n)
				}
				_, err = s.Release(ctx, c) // lost: looks for what it did before
				ok(err)
			}, []string{pkey}},
			{"expired and expire", func() {
				c := claim(n)
				_, err := s.Renew(ctx, -time.Hour, c)
				ok(err)
				ran = nil
				found, err := s.Expired(ctx, scenes, 0, n)
				ok(err)
				if len(found) != n {
					t.Errorf("%d expired, want %d", len(found), n)
				}
				ids, err := s.Expire(ctx, results(c))
				if ok(err); len(ids) != n {
					t.Errorf("%d expired, want %d", len(ids), n)
				}
			}, []string{held, pkey}},
			{"undispatched and dispatched", func() {
				found, err := s.Undispatched(ctx, n)
				ok(err)
				if len(found) != n {
					t.Errorf("%d undispatched, want %d", len(found), n)
				}
				ok(s.Dispatched(ctx, found))
			}, []string{waits, pkey}},
			{"redispatch, undelivered and wakes", func() {
				ids := waiting(n)
				_, err := s.Redispatch(ctx, ids, time.Minute)
				ok(err)
				ok(s.Undelivered(ctx, ids))
				w, err := s.Wakes(ctx, ids)
				if ok(err); len(w) != n {
					t.Errorf("%d wakes, want %d", len(w), n)
				}
			}, []string{pkey}},
			{"insert with keys that are held", func() {
				_, err := s.NextIDs(ctx, 1)
				ok(err)
				tasks := make([]persistence.NewTask, 0, n)
				for _, id := range waiting(n) {
					tasks = append(tasks, persistence.NewTask{Scene: scenes[id%5], Key: "k" + strconv.FormatInt(id, 10), Args: []byte{0}, ContentType: "application/json",
						Workflow: "w", Deadline: time.Hour, Event: &persistence.Event{Actor: "p"}})
				}
				ran = nil
				in, err := s.Insert(ctx, tasks)
				if ok(err); in[0].Created || in[0].Conflict || in[n-1].Created {
					t.Errorf("inserted %+v", in[0])
				}
				_, err = s.Insert(ctx, make1(n))
				ok(err)
			}, []string{key}},
			{"keys taken over", func() {
				tasks := make([]persistence.NewTask, 0, n)
				for _, id := range waiting(n) {
					id++ // 7 modulo 10 is done
					tasks = append(tasks, persistence.NewTask{Scene: scenes[id%5], Key: "k" + strconv.FormatInt(id, 10), ReuseKey: true})
				}
				ran = nil
				in, err := s.Insert(ctx, tasks)
				ok(err)
				created := 0
				for _, i := range in {
					if i.Created {
						created++
					}
				}
				if created < n*9/10 {
					t.Errorf("%d created, want %d", created, n)
				}
			}, []string{key, pkey}},
			{"sweep", func() {
				got, err := s.Sweep(ctx, 24*time.Hour, n)
				if ok(err); got != n {
					t.Errorf("%d swept, want %d", got, n)
				}
			}, []string{finished, pkey, events, "submission_at"}},
			{"submit", func() {
				_, err := s.NextIDs(ctx, 1)
				ok(err)
				list := make([]persistence.Submission, n)
				for i, id := range waiting(n) {
					key := "k" + strconv.FormatInt(id, 10)
					list[i] = persistence.Submission{MessageID: uuid.NewString(), Task: persistence.NewTask{ID: id, Scene: scenes[id%5], Key: key, Args: []byte{0}, ContentType: "application/json"}}
					switch i % 5 {
					case 1: // came before
						list[i].MessageID = "m" + strconv.Itoa(i)
					case 2, 3: // refused, moved
						list[i].Task.ID, list[i].Task.Args = 0, []byte{byte(i%5 - 2)}
						list[i].Task.Args[0] ^= 1
					}
				}
				ran = nil
				got, err := s.Submit(ctx, list)
				if ok(err); got[0].Conflict || n > 1 && !got[1].Repeated {
					t.Errorf("submitted %+v", got[:min(n, 2)])
				}
			}, []string{pkey}},
			{"one task", func() {
				id := waiting(1)[0]
				_, err := s.Get(ctx, id)
				ok(err)
				_, err = s.Events(ctx, id)
				ok(err)
				_, err = s.Operate(ctx, persistence.Action{Verb: persistence.Cancel, ID: id, Actor: "ann"})
				ok(err)
			}, []string{pkey, events}},
		} {
			name := fmt.Sprintf("%s, %d", tt.name, n)
			ran = nil
			tt.run()
			used := map[string]bool{}
			for _, st := range ran {
				for kind, plan := range map[string][]byte{"custom": explain(t, plain, st.query, st.args), "generic": explainGeneric(t, plain, st.query, st.args)} {
					for _, p := range readPlan(t, plan) {
						p.walk(func(p planNode) {
							switch {
							case p.Type == "Seq Scan" && p.Relation != "policy" && p.Relation != "reaper" && p.Relation != "workflow":
								t.Errorf("%s: %s plan scans all of %s\n%s\n%s", name, kind, p.Relation, st.query, plan)
							case strings.Contains(p.Type, "Index") && p.Cond == "" && p.Index != held: // which holds no more than is in flight
								t.Errorf("%s: %s plan reads all of index %s\n%s\n%s", name, kind, p.Index, st.query, plan)
							}
							if p.Index != "" {
								used[p.Index] = true
							}
						})
					}
				}
			}
			for _, index := range tt.indexes {
				if !used[index] {
					t.Errorf("%s does not use %s, but %v", name, index, used)
				}
			}
		}
	}
	t.Logf("all in %v", time.Since(start).Round(time.Millisecond))
}

func make1(n int) []persistence.NewTask {
	tasks := make([]persistence.NewTask, n)
	for i := range tasks {
		tasks[i].Scene = "s1"
	}
	return tasks
}

// fill stores a million tasks: 700,000 that wait, 1,000 that are held, the others done.
// Most that wait are far off; those with 6 at the end are due.
func fill(t *testing.T, s *persistence.Postgres, schema string) {
	t.Helper()
	tx, err := s.DB().BeginTxx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	run := func(query string) {
		t.Helper()
		if _, err := tx.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	// Indexes that are built at the end are built faster.
	var indexes []string
	if err := tx.SelectContext(t.Context(), &indexes, `SELECT indexdef FROM pg_indexes WHERE schemaname = $1 AND tablename = 'task' AND indexname <> 'task_pkey'`, schema); err != nil {
		t.Fatal(err)
	}
	run(`SET LOCAL synchronous_commit = off`)
	for _, name := range []string{"task_key", "task_waiting", "task_held", "task_finished"} {
		run(`DROP INDEX ` + schema + `.` + name)
	}
	run(`INSERT INTO ` + schema + `.task (id, service, scene, key, status, attempt, args, content_type, created_at, next_at, dispatch_after,
			lease_until, claim_token, claimed_by, finished_at, stop_reason)
		SELECT g, 'test', 's' || g % 5, 'k' || g, st, 1, '\x00', 'application/json', now() - interval '2 days', at, at + interval '30 seconds',
			CASE WHEN st = 'EXECUTING' THEN now() + interval '1 hour' END, CASE WHEN g % 10 > 6 OR st = 'EXECUTING' THEN md5((g / 100)::text)::uuid END, 'w',
			CASE WHEN st IN ('SUCCESS', 'FAILED') THEN now() - g % 172800 * interval '1 second' END, CASE WHEN st = 'FAILED' THEN 'fail_permanent' END
		FROM (SELECT g, CASE WHEN g % 1000 = 7 THEN 'EXECUTING' WHEN g % 10 < 7 THEN 'WAIT' WHEN g % 10 = 8 THEN 'FAILED' ELSE 'SUCCESS' END AS st,
				CASE WHEN g % 10 = 6 THEN now() - interval '1 hour' ELSE now() + interval '1 hour' + g % 86400 * interval '1 second' END AS at
			FROM generate_series(1, 1000000) g) x`)
	run(`INSERT INTO ` + schema + `.retry_event (task_id, attempt, to_status, reason) SELECT g * 10 + 7, 1, 'SUCCESS', 'success' FROM generate_series(1, 99999) g`)
	run(`INSERT INTO ` + schema + `.submission (service, message_id, task_id, at) SELECT 'test', 'm' || g, g, now() - g * interval '1 second' FROM generate_series(0, 199999) g`)
	run(`SELECT setval('` + schema + `.task_id_seq', 1000001)`)
	for _, def := range indexes {
		run(def)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	exec(t, s, `ANALYZE `+schema+`.task`)
	exec(t, s, `ANALYZE `+schema+`.retry_event`)
	exec(t, s, `ANALYZE `+schema+`.submission`)
}

func explain(t *testing.T, s *persistence.Postgres, query string, args []driver.NamedValue) []byte {
	t.Helper()
	var values []any
	for _, a := range args {
		values = append(values, a.Value)
	}
	var plan []byte
	if err := s.DB().GetContext(t.Context(), &plan, `EXPLAIN (FORMAT JSON) `+query, values...); err != nil {
		t.Fatalf("explain: %v\n%s", err, query)
	}
	return plan
}

// explainGeneric plans without the parameters.
func explainGeneric(t *testing.T, s *persistence.Postgres, query string, args []driver.NamedValue) []byte {
	t.Helper()
	tx, err := s.DB().BeginTxx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var values []string
	for _, a := range args {
		switch v := a.Value.(type) {
		case string:
			values = append(values, pq.QuoteLiteral(v))
		case int64, bool:
			values = append(values, fmt.Sprint(v))
		default:
			t.Fatalf("a parameter is %T", v)
		}
	}
	for _, st := range []string{`SET LOCAL plan_cache_mode = force_generic_plan`, `DEALLOCATE ALL`, `PREPARE p AS ` + query} {
		if _, err := tx.ExecContext(t.Context(), st); err != nil {
			t.Fatalf("%v\n%s", err, st)
		}
	}
	var plan []byte
	if err := tx.GetContext(t.Context(), &plan, `EXPLAIN (FORMAT JSON) EXECUTE p(`+strings.Join(values, ", ")+`)`); err != nil {
		t.Fatalf("explain: %v\n%s", err, query)
	}
	return plan
}

type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Cond     string     `json:"Index Cond"`
	Plans    []planNode `json:"Plans"`
}

func (p planNode) walk(f func(planNode)) {
	f(p)
	for _, c := range p.Plans {
		c.walk(f)
	}
}

func readPlan(t *testing.T, plan []byte) []planNode {
	t.Helper()
	var out []struct{ Plan planNode }
	if err := json.Unmarshal(plan, &out); err != nil {
		t.Fatal(err)
	}
	var nodes []planNode
	for _, o := range out {
		nodes = append(nodes, o.Plan)
	}
	return nodes
}
