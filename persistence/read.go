package persistence

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// Get implements Store.
func (s *Postgres) Get(ctx context.Context, id int64) (retry.Task, error) {
	var t retry.Task
	err := scanTask(s.db.QueryRowContext(ctx, s.q(`SELECT `+taskColumns+` FROM {schema}.task t WHERE t.id = $1 AND t.service = $2`), id, s.cfg.Service), &t)
	if errors.Is(err, sql.ErrNoRows) {
		return retry.Task{}, fmt.Errorf("%w: %d", retry.ErrNotFound, id)
	}
	return t, err
}

// List implements Store.
func (s *Postgres) List(ctx context.Context, f Filter) ([]retry.Task, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	statuses := make([]string, len(f.Statuses))
	for i, st := range f.Statuses {
		statuses[i] = string(st)
	}
	rows, err := s.db.QueryContext(ctx, s.q(`
		SELECT `+taskColumns+` FROM {schema}.task t
		WHERE t.service = $1
			AND (cardinality($2::text[]) = 0 OR t.scene = ANY($2::text[]))
			AND (cardinality($3::text[]) = 0 OR t.status = ANY($3::text[]))
			AND ($4 = '' OR t.key = $4) AND ($5 = '' OR t.workflow = $5)
			AND ($6::bigint = 0 OR t.created_at <= clock_timestamp() - $6::bigint * interval '1 microsecond')
			AND ($7::bigint = 0 OR t.created_at >= clock_timestamp() - $7::bigint * interval '1 microsecond')
			AND ($8::bigint = 0 OR t.id < $8::bigint)
		ORDER BY t.id DESC LIMIT $9`),
		s.cfg.Service, pq.Array(nonNil(f.Scenes)), pq.Array(statuses), f.Key, f.Workflow, micros(f.MinAge), micros(f.MaxAge), f.Before, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	var out []retry.Task
	err = each(rows, func() error {
		var t retry.Task
		if err := scanTask(rows, &t); err != nil {
			return err
		}
		out = append(out, t)
		return nil
	})
	return out, wrap(err, "list tasks")
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// Count implements Store.
func (s *Postgres) Count(ctx context.Context) ([]Count, error) {
	var out []Count
	err := s.db.SelectContext(ctx, &out, s.q(`
		SELECT t.scene, t.status, COALESCE(t.stop_reason, '') AS stop_reason, count(*) AS tasks, COALESCE(sum(t.attempt), 0) AS attempts
		FROM {schema}.task t WHERE t.service = $1
		GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`), s.cfg.Service)
	return out, wrap(err, "count tasks")
}

// Events implements Store.
func (s *Postgres) Events(ctx context.Context, id int64) ([]Event, error) {
	rows, err := s.db.QueryContext(ctx, s.q(`
		SELECT e.at, e.attempt, COALESCE(e.policy_version, 0), COALESCE(e.from_status, ''), e.to_status, e.reason, COALESCE(e.class, ''),
			COALESCE(e.actor, ''), COALESCE(e.note, ''), COALESCE(e.error, ''), e.facts, e.decision, COALESCE(e.phase, '')
		FROM {schema}.retry_event e WHERE e.task_id = $1 AND EXISTS (SELECT 1 FROM {schema}.task t WHERE t.id = $1 AND t.service = $2)
		ORDER BY e.id`), id, s.cfg.Service)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	var out []Event
	err = each(rows, func() error {
		var e Event
		var facts, decision sql.NullString
		if err := rows.Scan(&e.At, &e.Attempt, &e.PolicyVersion, &e.From, &e.To, &e.Reason, &e.Class, &e.Actor, &e.Note, &e.Error, &facts, &decision, &e.Phase); err != nil {
			return err
		}
		if facts.Valid {
			e.Facts = &retry.Facts{}
			if err := json.Unmarshal([]byte(facts.String), e.Facts); err != nil {
				return err
			}
		}
		if decision.Valid {
			e.Decision = &retry.Decision{}
			if err := json.Unmarshal([]byte(decision.String), e.Decision); err != nil {
				return err
			}
		}
		out = append(out, e)
		return nil
	})
	return out, wrap(err, "read journal")
}
