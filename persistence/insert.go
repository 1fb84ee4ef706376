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
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// maxBatchBytes bounds the arguments that one insert statement carries, so that
// a batch of large tasks does not become one huge message.
const maxBatchBytes = 8 << 20

// Insert implements Store. One statement does it, or one transaction where that is not
// enough.
func (s *Postgres) Insert(ctx context.Context, tasks []NewTask) ([]Inserted, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	// Before the transaction, which would hold a connection while this waits for another.
	batch, err := s.complete(ctx, tasks, s.NextIDs)
	if err != nil {
		return nil, err
	}
	var out []Inserted
	err = again(ctx, func() error {
		if batch.single() {
			var err error
			out, err = s.insert(ctx, s.db, batch, false)
			return err
		}
		tx, err := s.db.BeginTxx(ctx, nil)
		if err != nil {
			return fmt.Errorf("begin insert: %w", err)
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		if out, err = s.insert(ctx, tx, batch, false); err != nil {
			return err
		}
		return wrap(tx.Commit(), "commit insert")
	})
	if err != nil {
		return nil, refused(err)
	}
	return out, nil
}

// InsertTx implements Store.
func (s *Postgres) InsertTx(ctx context.Context, tx Tx, tasks []NewTask) ([]Inserted, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	batch, err := s.complete(ctx, tasks, func(ctx context.Context, n int) ([]int64, error) { return s.nextIDsTx(ctx, tx, n) })
	if err != nil {
		return nil, err
	}
	return s.insert(ctx, tx, batch, true)
}

// refused makes an ErrInvalid of what Postgres says about the data of a statement: it undid
// the statement, and will do so again.
func refused(err error) error {
	var pe *pq.Error
	if errors.As(err, &pe) && len(pe.Code) == 5 {
		switch pe.Code[:2] {
		case "22", "23", "54": // data exception, integrity constraint, limits
			return fmt.Errorf("%w: %w", retry.ErrInvalid, err)
		}
	}
	return err
}

// insertBatch is tasks in the order in which they are inserted: by scene and key, so
// that two batches that share keys do not lock each other out.
type insertBatch struct {
	tasks []NewTask
	place []int // of each task in what the caller gave
}

// single reports whether one statement will do, which is all or nothing by itself.
// Taking a key over needs another.
func (b insertBatch) single() bool {
	return len(b.chunks()) == 1 && !slices.ContainsFunc(b.tasks, func(t NewTask) bool { return t.ReuseKey })
}

// chunks splits the tasks by the size of their arguments: [from, to) each.
func (b insertBatch) chunks() [][2]int {
	var out [][2]int
	start, size := 0, 0
	for i, t := range b.tasks {
		if size += len(t.Args); size > maxBatchBytes && i > start {
			out = append(out, [2]int{start, i})
			start, size = i, len(t.Args)
		}
	}
	return append(out, [2]int{start, len(b.tasks)})
}

// complete checks the tasks and gives each an id, a key and a status.
func (s *Postgres) complete(ctx context.Context, given []NewTask, nextIDs func(context.Context, int) ([]int64, error)) (insertBatch, error) {
	tasks := slices.Clone(given)
	missing := 0
	for i := range tasks {
		t := &tasks[i]
		if t.Status == "" {
			t.Status = retry.StatusWait
		}
		if err := checkNewTask(t); err != nil {
			return insertBatch{}, fmt.Errorf("task %d of %d: %w", i+1, len(tasks), err)
		}
		if t.ID == 0 {
			missing++
		}
	}
	var ids []int64
	if missing > 0 {
		var err error
		if ids, err = nextIDs(ctx, missing); err != nil {
			return insertBatch{}, err
		}
	}
	b := insertBatch{place: make([]int, len(tasks)), tasks: make([]NewTask, len(tasks))}
	for i := range tasks {
		t := &tasks[i]
		if t.ID == 0 {
			t.ID, ids = ids[0], ids[1:]
		}
		t.Key = keyOf(t)
		b.place[i] = i
	}
	// Stable: of two with one key the first one given gets it.
	slices.SortStableFunc(b.place, func(i, j int) int {
		return cmp.Or(cmp.Compare(tasks[i].Scene, tasks[j].Scene), cmp.Compare(tasks[i].Key, tasks[j].Key))
	})
	for at, i := range b.place {
		b.tasks[at] = tasks[i]
	}
	return b, nil
}

// keyOf is the task's key, or the one that is made from its id.
func keyOf(t *NewTask) string {
	if t.Key == "" {
		return "auto:" + strconv.FormatInt(t.ID, 10)
	}
	return t.Key
}

// checkNewTask finds what Postgres would refuse, and with it the whole batch.
func checkNewTask(t *NewTask) error {
	errs := []error{retry.CheckScene(t.Scene)}
	bad := func(field string, value any, allowed string) {
		errs = append(errs, retry.NewFieldError(field, value, allowed))
	}
	if t.Key != "" {
		errs = append(errs, retry.CheckKey(t.Key))
	}
	switch t.Status {
	case retry.StatusWait, retry.StatusManualReview, retry.StatusFailed:
		if t.Lease != 0 || t.Token != "" || t.By != "" {
			bad("status", string(t.Status), "INIT where a lease, a token or a holder is given")
		}
	case retry.StatusInit:
		if t.Lease <= 0 {
			bad("lease", t.Lease, "above 0 for a task in INIT")
		}
		if uuid.Validate(t.Token) != nil {
			bad("token", t.Token, "a UUID for a task in INIT")
		}
	default:
		bad("status", string(t.Status), "WAIT, INIT, MANUAL_REVIEW or FAILED for a new task")
	}
	if !t.Phase.OrExecute().Valid() {
		bad("phase", string(t.Phase), "execute, query or callback")
	}
	if t.ID < 0 {
		bad("id", t.ID, "above 0, or 0 for a fresh one")
	}
	if t.Delay < 0 {
		bad("delay", t.Delay, "0 (at once) or more")
	}
	if t.Deadline < 0 {
		bad("deadline", t.Deadline, "0 (none) or more")
	}
	if t.Workflow != "" {
		if !storable(t.Workflow) || len(t.Workflow) > retry.MaxKeyLen {
			bad("workflow", t.Workflow, "1 to 255 bytes of UTF-8 without NUL")
		}
		if t.Deadline == 0 {
			bad("deadline", t.Deadline, "above 0 where a workflow is named")
		}
	}
	if !storable(t.ContentType) || len(t.ContentType) > retry.MaxKeyLen {
		bad("content type", t.ContentType, "at most 255 bytes of UTF-8 without NUL")
	}
	for k, v := range t.Headers {
		if !storable(k) || !storable(v) {
			bad("headers", k+": "+v, "UTF-8 without NUL")
		}
	}
	return errors.Join(errs...)
}

// storable reports whether Postgres can keep s as text.
func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// insert stores a batch chunk by chunk and puts the outcomes into the caller's order.
func (s *Postgres) insert(ctx context.Context, tx Tx, b insertBatch, inTx bool) ([]Inserted, error) {
	if err := s.saveWorkflows(ctx, tx, b.tasks); err != nil {
		return nil, err
	}
	out := make([]Inserted, len(b.tasks))
	for _, c := range b.chunks() {
		part, err := s.insertChunk(ctx, tx, b.tasks[c[0]:c[1]], inTx)
		if err != nil {
			return nil, err
		}
		for i, in := range part {
			out[b.place[c[0]+i]] = in
		}
	}
	return out, nil
}

// insertChunk inserts, finds out who holds the keys of those that were not
// inserted, takes over the keys that may be reused, and starts again for these and
// for those whose holder has gone meanwhile.
func (s *Postgres) insertChunk(ctx context.Context, tx Tx, tasks []NewTask, inTx bool) ([]Inserted, error) {
	out := make([]Inserted, len(tasks))
	todo := make([]int, len(tasks))
	for i := range tasks {
		todo[i] = i
	}
	for round := 0; len(todo) > 0; round++ {
		if round == 5 {
			return nil, fmt.Errorf("insert: the keys of %d tasks keep changing hands, or their ids are taken by tasks with other keys", len(todo))
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
			out[i] = s.inserted(t, t.Status)
		}
		if todo, err = s.resolve(ctx, tx, tasks, rest, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// inserted is what is said of a task whose row is there, in that status.
func (s *Postgres) inserted(t *NewTask, status retry.Status) Inserted {
	in := Inserted{ID: t.ID, Created: true, Status: status}
	if status == retry.StatusWait {
		in.Delay, in.Far = t.Delay, t.Delay > s.cfg.Horizon
	}
	return in
}

const insertSQL = `
WITH n AS (
	SELECT * FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::bigint[],
		$10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::boolean[], $20::bigint[], $21::text[], $22::text[], $23::text[])
		WITH ORDINALITY AS n(id, scene, key, status, args, content_type, headers, delay, deadline, workflow, stop_reason, last_error,
			last_class, has_event, lease, token, claimed_by, phase, place)
), clock AS MATERIALIZED (
	SELECT clock_timestamp() AS now
), i AS (
	INSERT INTO {schema}.task (id, service, scene, key, status, args, content_type, headers, created_at, next_at, dispatch_after,
		deadline_at, time_limit, workflow, stop_reason, last_error, last_class, unknown, lease_until, claim_token, claimed_by, phase, finished_at)
	SELECT n.id, $1, n.scene, n.key, n.status, n.args, n.content_type, NULLIF(n.headers, '')::jsonb, clock.now,
		clock.now + n.delay * interval '1 microsecond',
		CASE WHEN n.delay > $16::bigint THEN clock.now + (n.delay - $17::bigint) * interval '1 microsecond'
		     WHEN $19::boolean THEN clock.now + LEAST(n.delay, $18::bigint) * interval '1 microsecond'
		     ELSE clock.now + (n.delay + $18::bigint) * interval '1 microsecond' END,
		COALESCE(w.deadline_at, clock.now + NULLIF(n.deadline, 0) * interval '1 microsecond'),
		COALESCE(w.deadline_at - clock.now, NULLIF(n.deadline, 0) * interval '1 microsecond'),
		NULLIF(n.workflow, ''), NULLIF(n.stop_reason, ''), NULLIF(n.last_error, ''), NULLIF(n.last_class, ''), n.last_class = 'unknown',
		clock.now + NULLIF(n.lease, 0) * interval '1 microsecond', NULLIF(n.token, '')::uuid, NULLIF(n.claimed_by, ''), n.phase,
		CASE WHEN n.status = 'FAILED' THEN clock.now END
	FROM n CROSS JOIN clock LEFT JOIN {schema}.workflow w ON n.workflow <> '' AND w.service = $1 AND w.name = n.workflow
	ORDER BY n.place
	ON CONFLICT DO NOTHING
	RETURNING id
)`

const insertPlain = insertSQL + ` SELECT id FROM i`

const insertWithEvents = insertSQL + `, j AS (
	INSERT INTO {schema}.retry_event (task_id, attempt, policy_version, to_status, reason, class, actor, note, error, facts, decision, phase)
	SELECT i.id, 0, NULLIF(e.policy, 0), n.status, e.reason, NULLIF(e.class, ''), NULLIF(e.actor, ''), NULLIF(e.note, ''),
		NULLIF(n.last_error, ''), NULLIF(e.facts, '')::jsonb, NULLIF(e.decision, '')::jsonb, n.phase
	FROM i JOIN n ON n.id = i.id AND n.has_event
		JOIN unnest($2::bigint[], $24::bigint[], $25::text[], $26::text[], $27::text[], $28::text[], $29::text[], $30::text[])
			AS e(id, policy, reason, class, actor, note, facts, decision) ON e.id = i.id
) SELECT id FROM i`

// insertRows inserts tasks[todo...] and returns the ids that are in the table
// now because of it.
func (s *Postgres) insertRows(ctx context.Context, tx Tx, tasks []NewTask, todo []int, inTx bool) (map[int64]bool, error) {
	n := len(todo)
	ids, delays, deadlines := make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
	scenes, keys, statuses, types, headers := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	workflows, stops, errs, classes, reasons := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	leases, tokens, holders, phases := make([]int64, 0, n), make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
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
		reasons, phases = append(reasons, string(reason)), append(phases, string(t.Phase.OrExecute()))
		leases, tokens, holders = append(leases, micros(t.Lease)), append(tokens, t.Token), append(holders, retry.CutString(t.By, maxActorLen))
	}
	params := []any{s.cfg.Service, pq.Array(ids), pq.Array(scenes), pq.Array(keys), pq.Array(statuses), args, pq.Array(types), pq.Array(headers),
		pq.Array(delays), pq.Array(deadlines), pq.Array(workflows), pq.Array(stops), pq.Array(errs), pq.Array(classes), pq.Array(events.has),
		micros(s.cfg.Horizon), micros(s.lead()), micros(DispatchGap), inTx,
		pq.Array(leases), pq.Array(tokens), pq.Array(holders), pq.Array(phases)}
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

// A task that has lost its key since is still found by its id.
const holdersSQL = `
	SELECT t.scene, t.key, t.id, t.status, t.args, t.content_type, t.holds_key
	FROM unnest($2::text[], $3::text[]) AS n(scene, key)
		JOIN {schema}.task t ON t.service = $1 AND t.scene = n.scene AND t.key = n.key AND t.holds_key
	UNION ALL
	SELECT t.scene, t.key, t.id, t.status, t.args, t.content_type, false
	FROM unnest($2::text[], $3::text[], $4::bigint[]) AS n(scene, key, id)
		JOIN {schema}.task t ON t.id = n.id AND t.service = $1 AND t.scene = n.scene AND t.key = n.key AND NOT t.holds_key`

const dropKeysSQL = `
	WITH l AS (
		SELECT t.id FROM {schema}.task t
		WHERE t.id = ANY($1::bigint[]) AND t.holds_key AND t.status IN ('SUCCESS', 'FAILED', 'CANCELLED')
		ORDER BY t.id FOR UPDATE
	)
	UPDATE {schema}.task t SET holds_key = false FROM l WHERE t.id = l.id`

// holder is a task that has the key, or the id, of one to be inserted.
type holder struct {
	id          int64
	status      retry.Status
	args        []byte
	contentType string
}

func (h holder) differs(t *NewTask) bool {
	return !bytes.Equal(h.args, t.Args) || h.contentType != t.ContentType
}

// resolve looks up who holds the keys of tasks[todo...], fills in what is
// clear and returns those to insert again.
func (s *Postgres) resolve(ctx context.Context, tx Tx, tasks []NewTask, todo []int, out []Inserted) ([]int, error) {
	if len(todo) == 0 {
		return nil, nil
	}
	type place struct{ scene, key string }
	byID, byKey := map[int64]holder{}, map[place]holder{}
	var ids []int64
	var scenes, keys []string
	for _, i := range todo {
		ids, scenes, keys = append(ids, tasks[i].ID), append(scenes, tasks[i].Scene), append(keys, tasks[i].Key)
	}
	rows, err := tx.QueryContext(ctx, s.q(holdersSQL), s.cfg.Service, pq.Array(scenes), pq.Array(keys), pq.Array(ids))
	if err != nil {
		return nil, fmt.Errorf("find holders of keys: %w", err)
	}
	err = each(rows, func() error {
		var p place
		var h holder
		var holds bool
		if err := rows.Scan(&p.scene, &p.key, &h.id, &h.status, &h.args, &h.contentType, &holds); err != nil {
			return err
		}
		byID[h.id] = h
		if holds {
			byKey[p] = h
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find holders of keys: %w", err)
	}
	var rest []int
	var reuse []int64
	for _, i := range todo {
		t := &tasks[i]
		if h, ok := byID[t.ID]; ok {
			// Our own row: the driver ran our insert twice, or the caller came
			// again with the same id. With other arguments it is not ours: an id
			// that a restored database gave out once more.
			if out[i] = s.inserted(t, h.status); h.differs(t) {
				out[i] = Inserted{ID: h.id, Status: h.status, Conflict: true}
			}
			continue
		}
		h, ok := byKey[place{t.Scene, t.Key}]
		switch {
		case !ok: // the holder has gone meanwhile
			rest = append(rest, i)
		case t.ReuseKey && h.status.Terminal():
			reuse, rest = append(reuse, h.id), append(rest, i)
		default:
			out[i] = Inserted{ID: h.id, Status: h.status, Conflict: h.differs(t)}
		}
	}
	if len(reuse) > 0 {
		_, err := tx.ExecContext(ctx, s.q(dropKeysSQL), pq.Array(reuse))
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
	_, err := tx.ExecContext(ctx, s.q(workflowSQL), s.cfg.Service, pq.Array(names), pq.Array(deadlines))
	return wrap(err, "save workflow deadlines")
}

const workflowSQL = `
		INSERT INTO {schema}.workflow (service, name, deadline_at)
		SELECT $1, w.name, clock_timestamp() + w.deadline * interval '1 microsecond' FROM unnest($2::text[], $3::bigint[]) AS w(name, deadline)
		ORDER BY w.name
		ON CONFLICT DO NOTHING`

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
