package persistence

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// Submit implements Store. The messages are noted before the tasks and in the order of
// their ids, so that of two transactions with one message the second waits for the first,
// and none waits crosswise.
func (s *Postgres) Submit(ctx context.Context, list []Submission) ([]Submitted, error) {
	if len(list) == 0 {
		return nil, nil
	}
	tasks, err := s.completeSubmissions(ctx, list)
	if err != nil {
		return nil, err
	}
	var out []Submitted
	err = again(ctx, func() error {
		tx, err := s.db.BeginTxx(ctx, nil)
		if err != nil {
			return fmt.Errorf("begin submit: %w", err)
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		if out, err = s.submit(ctx, tx, list, tasks); err != nil {
			return err
		}
		return wrap(tx.Commit(), "commit submit")
	})
	if err != nil {
		return nil, refused(err)
	}
	return out, nil
}

// completeSubmissions returns the tasks with their ids, before the transaction, which would
// hold a connection while this waits for another.
func (s *Postgres) completeSubmissions(ctx context.Context, list []Submission) ([]NewTask, error) {
	tasks := make([]NewTask, len(list))
	for i, m := range list {
		if !storable(m.MessageID) || len(m.MessageID) > retry.MaxKeyLen {
			return nil, fmt.Errorf("message %d of %d: %w", i+1, len(list), retry.NewFieldError("message id", m.MessageID, "at most 255 bytes of UTF-8 without NUL"))
		}
		tasks[i] = m.Task
	}
	batch, err := s.complete(ctx, tasks, s.NextIDs)
	if err != nil {
		return nil, err
	}
	for at, i := range batch.place {
		tasks[i] = batch.tasks[at]
	}
	return tasks, nil
}

func (s *Postgres) submit(ctx context.Context, tx Tx, list []Submission, tasks []NewTask) ([]Submitted, error) {
	out := make([]Submitted, len(list))
	taken, err := s.takeMessages(ctx, tx, list, tasks)
	if err != nil {
		return nil, err
	}
	stray, err := s.strayIDs(ctx, tx, list)
	if err != nil {
		return nil, err
	}
	first := newFirsts(len(list))
	var fresh []int
	for i := range list {
		before, repeated := taken[list[i].MessageID]
		switch {
		case repeated:
			out[i] = before.answer(&list[i].Task)
		case first.before(i, list[i].MessageID, &tasks[i]) >= 0: // filled in below
		case stray[tasks[i].ID]:
			out[i] = Submitted{Inserted: Inserted{ID: tasks[i].ID, Conflict: true}}
		default:
			fresh = append(fresh, i)
		}
	}
	if err := s.insertFresh(ctx, tx, tasks, fresh, out); err != nil {
		return nil, err
	}
	for i, j := range first.same {
		conflict := out[j].Conflict || !sameTask(&tasks[i], &tasks[j])
		out[i] = Submitted{Inserted: Inserted{ID: out[j].ID, Status: out[j].Status, Conflict: conflict}, Repeated: !conflict}
	}
	return out, s.amendMessages(ctx, tx, list, tasks, taken, out)
}

// firsts finds messages and ids that come more than once in a call.
type firsts struct {
	message map[string]int
	id      map[int64]int
	same    map[int]int // a later one, and the first
}

func newFirsts(n int) firsts {
	return firsts{message: make(map[string]int, n), id: make(map[int64]int, n), same: map[int]int{}}
}

// before returns the place of the first with this message, or this task, or -1.
func (f firsts) before(i int, message string, t *NewTask) int {
	j, ok := f.id[t.ID]
	if message != "" && !ok {
		j, ok = f.message[message]
	}
	if ok {
		f.same[i] = j
		return j
	}
	f.id[t.ID] = i
	if message != "" {
		f.message[message] = i
	}
	return -1
}

func sameTask(a, b *NewTask) bool {
	return a.Scene == b.Scene && (a.Key == b.Key || a.ID != b.ID) && bytes.Equal(a.Args, b.Args) && a.ContentType == b.ContentType
}

// insertFresh inserts tasks[fresh...] and puts the answers into out.
func (s *Postgres) insertFresh(ctx context.Context, tx Tx, tasks []NewTask, fresh []int, out []Submitted) error {
	if len(fresh) == 0 {
		return nil
	}
	part := make([]NewTask, len(fresh))
	for at, i := range fresh {
		part[at] = tasks[i]
	}
	batch, err := s.complete(ctx, part, nil) // sorts: all have their ids
	if err != nil {
		return err
	}
	in, err := s.insert(ctx, tx, batch, false)
	if err != nil {
		return err
	}
	for at, i := range fresh {
		out[i] = Submitted{Inserted: in[at]}
	}
	return nil
}

// takeMessages notes the messages that are new, and returns what became of the tasks of the
// others. Whoever has one in a transaction of its own is waited for.
func (s *Postgres) takeMessages(ctx context.Context, tx Tx, list []Submission, tasks []NewTask) (map[string]takenTask, error) {
	var messages []string
	var ids []int64
	seen := make(map[string]bool, len(list))
	for i, m := range list {
		if m.MessageID != "" && !seen[m.MessageID] {
			messages, ids = append(messages, m.MessageID), append(ids, tasks[i].ID)
			seen[m.MessageID] = true
		}
	}
	if len(messages) == 0 {
		return nil, nil
	}
	fresh := make(map[string]bool, len(messages))
	rows, err := tx.QueryContext(ctx, s.q(takeMessagesSQL), s.cfg.Service, pq.Array(messages), pq.Array(ids))
	if err == nil {
		err = each(rows, func() error {
			var id string
			err := rows.Scan(&id)
			fresh[id] = true
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("note messages: %w", err)
	}
	old := slices.DeleteFunc(messages, func(m string) bool { return fresh[m] })
	if len(old) == 0 {
		return nil, nil
	}
	taken := make(map[string]takenTask, len(old))
	rows, err = tx.QueryContext(ctx, s.q(takenSQL), s.cfg.Service, pq.Array(old))
	if err == nil {
		err = each(rows, func() error {
			var id string
			var t takenTask
			err := rows.Scan(&id, &t.id, &t.status, &t.scene, &t.args, &t.contentType)
			taken[id] = t
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("find messages: %w", err)
	}
	if len(taken) < len(old) {
		return nil, fmt.Errorf("submit: %d messages were forgotten just now", len(old)-len(taken))
	}
	return taken, nil
}

// takenTask is the task of a message that was taken before. Its status is empty where it has
// gone since.
type takenTask struct {
	holder
	scene string
}

// answer says what becomes of the message that came again: another task in it is a conflict,
// so that a client that gives all its messages one id does not lose them in silence.
func (t takenTask) answer(n *NewTask) Submitted {
	other := t.status != "" && (t.scene != n.Scene || t.differs(n))
	return Submitted{Inserted: Inserted{ID: t.id, Status: t.status, Conflict: other}, Repeated: !other}
}

const takeMessagesSQL = `
	INSERT INTO {schema}.submission (service, message_id, task_id)
	SELECT $1, m.message_id, m.task_id FROM unnest($2::text[], $3::bigint[]) AS m(message_id, task_id)
	ORDER BY m.message_id
	ON CONFLICT DO NOTHING
	RETURNING message_id`

const takenSQL = `
	SELECT m.message_id, m.task_id, COALESCE(t.status, ''), COALESCE(t.scene, ''), t.args, COALESCE(t.content_type, '')
	FROM {schema}.submission m LEFT JOIN {schema}.task t ON t.id = m.task_id AND t.service = m.service
	WHERE m.service = $1 AND m.message_id = ANY($2::text[])`

// strayIDs returns which ids that came with the messages belong to tasks with other keys: to
// insert one would fail the whole batch.
func (s *Postgres) strayIDs(ctx context.Context, tx Tx, list []Submission) (map[int64]bool, error) {
	var ids []int64
	for _, m := range list {
		if m.Task.ID != 0 {
			ids = append(ids, m.Task.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	type place struct{ service, scene, key string }
	found := make(map[int64]place, len(ids))
	rows, err := tx.QueryContext(ctx, s.q(`SELECT t.id, t.service, t.scene, t.key FROM {schema}.task t WHERE t.id = ANY($1::bigint[])`), pq.Array(ids))
	if err == nil {
		err = each(rows, func() error {
			var id int64
			var p place
			err := rows.Scan(&id, &p.service, &p.scene, &p.key)
			found[id] = p
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("find ids of messages: %w", err)
	}
	stray := map[int64]bool{}
	for _, m := range list {
		t := m.Task
		if p, ok := found[t.ID]; ok && p != (place{s.cfg.Service, t.Scene, keyOf(&t)}) {
			stray[t.ID] = true
		}
	}
	return stray, nil
}

// amendMessages corrects what takeMessages noted: the task of a message is the one that holds
// the key, and one that conflicts was not taken. It may come again and has to be told so again.
func (s *Postgres) amendMessages(ctx context.Context, tx Tx, list []Submission, tasks []NewTask, taken map[string]takenTask, out []Submitted) error {
	good := map[string]bool{"": true}
	for i, m := range list {
		_, before := taken[m.MessageID]
		good[m.MessageID] = good[m.MessageID] || before || !out[i].Conflict
	}
	var refused, moved []string
	var holders []int64
	for i, m := range list {
		switch {
		case !good[m.MessageID]:
			refused = append(refused, m.MessageID)
		case m.MessageID != "" && !out[i].Repeated && !out[i].Conflict && out[i].ID != tasks[i].ID:
			moved, holders = append(moved, m.MessageID), append(holders, out[i].ID)
		}
	}
	if len(refused) > 0 {
		_, err := tx.ExecContext(ctx, s.q(`DELETE FROM {schema}.submission m WHERE m.service = $1 AND m.message_id = ANY($2::text[])`), s.cfg.Service, pq.Array(refused))
		if err != nil {
			return fmt.Errorf("note refused messages: %w", err)
		}
	}
	if len(moved) > 0 {
		_, err := tx.ExecContext(ctx, s.q(`UPDATE {schema}.submission m SET task_id = n.task_id
			FROM unnest($2::text[], $3::bigint[]) AS n(message_id, task_id) WHERE m.service = $1 AND m.message_id = n.message_id`),
			s.cfg.Service, pq.Array(moved), pq.Array(holders))
		if err != nil {
			return fmt.Errorf("note the tasks of messages: %w", err)
		}
	}
	return nil
}
