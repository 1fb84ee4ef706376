package persistence

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// maxBatchBytes bounds the arguments that one insert statement carries, so that
// a batch of large tasks does not become one huge message.
const maxBatchBytes = 8 << 20

// Insert implements Store. All tasks are stored in one transaction where they need more
// than one statement.
func (s *Postgres) Insert(ctx context.Context, tasks []NewTask) ([]Inserted, error) {
	var out []Inserted
	err := again(ctx, func() error {
		if len(chunks(tasks)) <= 1 {
			var err error
			out, err = s.insert(ctx, s.db, tasks, false)
			return err
		}
		tx, err := s.db.BeginTxx(ctx, nil)
		if err != nil {
			return fmt.Errorf("begin insert: %w", err)
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		if out, err = s.insert(ctx, tx, tasks, false); err != nil {
			return err
		}
		return wrap(tx.Commit(), "commit insert")
	})
	return out, err
}

// InsertTx implements Store.
func (s *Postgres) InsertTx(ctx context.Context, tx Tx, tasks []NewTask) ([]Inserted, error) {
	return s.insert(ctx, tx, tasks, true)
}

// chunks splits tasks by the size of their arguments.
func chunks(tasks []NewTask) [][]NewTask {
	var out [][]NewTask
	start, size := 0, 0
	for i, t := range tasks {
		if size += len(t.Args); size > maxBatchBytes && i > start {
			out = append(out, tasks[start:i])
			start, size = i, len(t.Args)
		}
	}
	return append(out, tasks[start:])
}

func (s *Postgres) insert(ctx context.Context, tx Tx, tasks []NewTask, inTx bool) ([]Inserted, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	tasks = slices.Clone(tasks)
	if err := s.complete(ctx, tasks); err != nil {
		return nil, err
	}
	out := make([]Inserted, 0, len(tasks))
	for _, chunk := range chunks(tasks) {
		part, err := s.insertChunk(ctx, tx, chunk, inTx)
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

// complete gives every task an id and a key.
func (s *Postgres) complete(ctx context.Context, tasks []NewTask) error {
	missing := 0
	for _, t := range tasks {
		if t.ID == 0 {
			missing++
		}
	}
	var ids []int64
	if missing > 0 {
		var err error
		if ids, err = s.NextIDs(ctx, missing); err != nil {
			return err
		}
	}
	for i := range tasks {
		t := &tasks[i]
		if t.ID == 0 {
			t.ID, ids = ids[0], ids[1:]
		}
		if t.Key == "" {
			t.Key = "auto:" + strconv.FormatInt(t.ID, 10)
		}
		if t.Status == "" {
			t.Status = retry.StatusWait
		}
		if t.Status != retry.StatusWait && t.Status != retry.StatusManualReview {
			return retry.NewFieldError("status", string(t.Status), "WAIT or MANUAL_REVIEW for a new task")
		}
	}
	return nil
}

// insertChunk inserts, finds out who holds the keys of those that were not
// inserted, takes over the keys that may be reused, and starts again for these and
// for those whose holder has gone meanwhile.
func (s *Postgres) insertChunk(ctx context.Context, tx Tx, tasks []NewTask, inTx bool) ([]Inserted, error) {
	if err := s.saveWorkflows(ctx, tx, tasks); err != nil {
		return nil, err
	}
	out := make([]Inserted, len(tasks))
	todo := make([]int, len(tasks))
	for i := range tasks {
		todo[i] = i
	}
	for round := 0; len(todo) > 0; round++ {
		if round == 5 {
			return nil, fmt.Errorf("insert: the keys of %d tasks keep changing hands", len(todo))
		}
		created, err := s.insertRows(ctx, tx, tasks, todo, inTx)
		if err != nil {
			return nil, err
		}
		var rest []int
		for _, i := range todo {
			t := &tasks[i]
			if !created[t.ID] {
				rest = append(rest, i)
				continue
			}
			out[i] = s.inserted(t)
		}
		if todo, err = s.resolve(ctx, tx, tasks, rest, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *Postgres) inserted(t *NewTask) Inserted {
	in := Inserted{ID: t.ID, Created: true, Status: t.Status}
	if t.Status == retry.StatusWait {
		in.Delay, in.Far = t.Delay, t.Delay > s.cfg.Horizon
	}
	return in
}

const insertSQL = `
WITH n AS (
	SELECT * FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::bigint[],
		$10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::boolean[])
		AS n(id, scene, key, status, args, content_type, headers, delay, deadline, workflow, stop_reason, last_error, last_class, has_event)
), clock AS MATERIALIZED (
	SELECT clock_timestamp() AS now
), i AS (
	INSERT INTO {schema}.task (id, service, scene, key, status, args, content_type, headers, created_at, next_at, dispatch_after,
		deadline_at, workflow, stop_reason, last_error, last_class, unknown)
	SELECT n.id, $1, n.scene, n.key, n.status, n.args, n.content_type, NULLIF(n.headers, '')::jsonb, clock.now,
		clock.now + n.delay * interval '1 microsecond',
		CASE WHEN n.delay > $16::bigint THEN clock.now + (n.delay - $17::bigint) * interval '1 microsecond'
		     WHEN $19::boolean THEN clock.now + LEAST(n.delay, $18::bigint) * interval '1 microsecond'
		     ELSE clock.now + (n.delay + $18::bigint) * interval '1 microsecond' END,
		COALESCE(w.deadline_at, clock.now + NULLIF(n.deadline, 0) * interval '1 microsecond'),
		NULLIF(n.workflow, ''), NULLIF(n.stop_reason, ''), NULLIF(n.last_error, ''), NULLIF(n.last_class, ''), n.last_class = 'unknown'
	FROM n CROSS JOIN clock LEFT JOIN {schema}.workflow w ON n.workflow <> '' AND w.service = $1 AND w.name = n.workflow
	ORDER BY n.scene, n.key
	ON CONFLICT DO NOTHING
	RETURNING id
)`

const insertPlain = insertSQL + ` SELECT id FROM i`

const insertWithEvents = insertSQL + `, j AS (
	INSERT INTO {schema}.retry_event (task_id, attempt, policy_version, to_status, reason, class, actor, note, error, facts, decision)
	SELECT i.id, 0, NULLIF(e.policy, 0), n.status, e.reason, NULLIF(e.class, ''), NULLIF(e.actor, ''), NULLIF(e.note, ''),
		NULLIF(n.last_error, ''), NULLIF(e.facts, '')::jsonb, NULLIF(e.decision, '')::jsonb
	FROM i JOIN n ON n.id = i.id AND n.has_event
		JOIN unnest($2::bigint[], $20::bigint[], $21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[])
			AS e(id, policy, reason, class, actor, note, facts, decision) ON e.id = i.id
) SELECT id FROM i`

// insertRows inserts tasks[todo...] and returns the ids that are in the table
// now because of it.
func (s *Postgres) insertRows(ctx context.Context, tx Tx, tasks []NewTask, todo []int, inTx bool) (map[int64]bool, error) {
	n := len(todo)
	ids, delays, deadlines := make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
	scenes, keys, statuses, types, headers := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	workflows, stops, errs, classes, reasons := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	args := make(pq.ByteaArray, 0, n)
	var events eventArrays
	for _, i := range todo {
		t := &tasks[i]
		h := ""
		if len(t.Headers) > 0 {
			b, err := json.Marshal(t.Headers)
			if err != nil {
				return nil, fmt.Errorf("encode headers: %w", err)
			}
			h = string(b)
		}
		if err := events.add(t.Event); err != nil {
			return nil, err
		}
		reason := retry.ReasonEnqueued
		if t.Event != nil && t.Event.Reason != "" {
			reason = t.Event.Reason
		}
		a := t.Args
		if a == nil {
			a = []byte{}
		}
		ids, delays, deadlines = append(ids, t.ID), append(delays, micros(t.Delay)), append(deadlines, micros(t.Deadline))
		scenes, keys, statuses = append(scenes, t.Scene), append(keys, t.Key), append(statuses, string(t.Status))
		types, headers, args = append(types, t.ContentType), append(headers, h), append(args, a)
		workflows, stops = append(workflows, t.Workflow), append(stops, string(t.StopReason))
		errs, classes = append(errs, retry.CutString(t.LastError, MaxErrorLen)), append(classes, string(t.LastClass))
		reasons = append(reasons, string(reason))
	}
	params := []any{s.cfg.Service, pq.Array(ids), pq.Array(scenes), pq.Array(keys), pq.Array(statuses), args, pq.Array(types), pq.Array(headers),
		pq.Array(delays), pq.Array(deadlines), pq.Array(workflows), pq.Array(stops), pq.Array(errs), pq.Array(classes), pq.Array(events.has),
		micros(s.cfg.Horizon), micros(s.lead()), micros(DispatchGap), inTx}
	stmt := insertPlain
	if events.any() {
		stmt = insertWithEvents
		params = append(params, pq.Array(events.policy), pq.Array(reasons), pq.Array(events.class), pq.Array(events.actor), pq.Array(events.note),
			pq.Array(events.facts), pq.Array(events.decision))
	}
	created := make(map[int64]bool, n)
	rows, err := tx.QueryContext(ctx, s.q(stmt), params...)
	if err != nil {
		return nil, fmt.Errorf("insert tasks: %w", err)
	}
	return created, eachID(rows, func(id int64) { created[id] = true })
}

// lead is how long before its due time a task beyond the horizon is woken by
// the scan: nearly the horizon, so that late scans still have time.
func (s *Postgres) lead() time.Duration { return s.cfg.Horizon - s.cfg.Horizon/16 }

// resolve looks up who holds the keys of tasks[todo...], fills in what is
// clear and returns those to insert again.
func (s *Postgres) resolve(ctx context.Context, tx Tx, tasks []NewTask, todo []int, out []Inserted) ([]int, error) {
	if len(todo) == 0 {
		return nil, nil
	}
	type place struct{ scene, key string }
	type holder struct {
		id          int64
		status      retry.Status
		args        []byte
		contentType string
	}
	holders := map[place]holder{}
	var scenes, keys []string
	for _, i := range todo {
		scenes, keys = append(scenes, tasks[i].Scene), append(keys, tasks[i].Key)
	}
	rows, err := tx.QueryContext(ctx, s.q(`
		SELECT t.scene, t.key, t.id, t.status, t.args, t.content_type
		FROM unnest($2::text[], $3::text[]) AS n(scene, key)
			JOIN {schema}.task t ON t.service = $1 AND t.scene = n.scene AND t.key = n.key AND t.holds_key`),
		s.cfg.Service, pq.Array(scenes), pq.Array(keys))
	if err != nil {
		return nil, fmt.Errorf("find holders of keys: %w", err)
	}
	err = each(rows, func() error {
		var p place
		var h holder
		if err := rows.Scan(&p.scene, &p.key, &h.id, &h.status, &h.args, &h.contentType); err != nil {
			return err
		}
		holders[p] = h
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find holders of keys: %w", err)
	}
	var rest []int
	var reuse []int64
	for _, i := range todo {
		t := &tasks[i]
		h, ok := holders[place{t.Scene, t.Key}]
		switch {
		case !ok: // the holder has gone meanwhile
			rest = append(rest, i)
		case h.id == t.ID: // the driver ran our insert twice
			out[i] = s.inserted(t)
		case t.ReuseKey && h.status.Terminal():
			reuse, rest = append(reuse, h.id), append(rest, i)
		default:
			out[i] = Inserted{ID: h.id, Status: h.status, Conflict: !bytes.Equal(h.args, t.Args) || h.contentType != t.ContentType}
		}
	}
	if len(reuse) > 0 {
		slices.Sort(reuse)
		_, err := tx.ExecContext(ctx, s.q(`
			UPDATE {schema}.task SET holds_key = false
			WHERE id = ANY($1::bigint[]) AND holds_key AND status IN ('SUCCESS', 'FAILED', 'CANCELLED')`), pq.Array(reuse))
		if err != nil {
			return nil, fmt.Errorf("release keys of ended tasks: %w", err)
		}
	}
	return rest, nil
}

// saveWorkflows fixes the deadlines of workflows that are new.
func (s *Postgres) saveWorkflows(ctx context.Context, tx Tx, tasks []NewTask) error {
	type wf struct {
		name     string
		deadline int64
	}
	var list []wf
	for _, t := range tasks {
		if t.Workflow == "" {
			continue
		}
		if t.Deadline <= 0 {
			return retry.NewFieldError("deadline", t.Deadline, "above 0 where a workflow is named")
		}
		if !slices.ContainsFunc(list, func(w wf) bool { return w.name == t.Workflow }) {
			list = append(list, wf{t.Workflow, micros(t.Deadline)})
		}
	}
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b wf) int { return cmp.Compare(a.name, b.name) })
	names, deadlines := make([]string, len(list)), make([]int64, len(list))
	for i, w := range list {
		names[i], deadlines[i] = w.name, w.deadline
	}
	_, err := tx.ExecContext(ctx, s.q(`
		INSERT INTO {schema}.workflow (service, name, deadline_at)
		SELECT $1, w.name, clock_timestamp() + w.deadline * interval '1 microsecond' FROM unnest($2::text[], $3::bigint[]) AS w(name, deadline)
		ORDER BY w.name
		ON CONFLICT DO NOTHING`), s.cfg.Service, pq.Array(names), pq.Array(deadlines))
	return wrap(err, "save workflow deadlines")
}

type rowsIter interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// each calls f for every row and closes rows.
func each(rows rowsIter, f func() error) error {
	for rows.Next() {
		if err := f(); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

func eachID(rows rowsIter, f func(int64)) error {
	return each(rows, func() error {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		f(id)
		return nil
	})
}
