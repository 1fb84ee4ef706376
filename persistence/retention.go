package persistence

import (
	"context"
	"time"
)

// In one statement a task goes with its journal. Rows that another sweep or a person has
// in hand are passed over.
const sweepSQL = `
WITH found AS (
	SELECT t.id FROM {schema}.task t
	WHERE t.service = $1 AND t.finished_at < (SELECT clock_timestamp()) - $2::bigint * interval '1 microsecond'
	ORDER BY t.finished_at LIMIT $3 FOR UPDATE SKIP LOCKED
), gone AS (
	DELETE FROM {schema}.task t WHERE t.id = ANY(ARRAY(SELECT id FROM found))
	RETURNING t.id
), events AS (
	DELETE FROM {schema}.retry_event e WHERE e.task_id = ANY(ARRAY(SELECT id FROM gone))
)
SELECT id FROM gone`

const forgetSQL = `
WITH found AS (
	SELECT s.message_id FROM {schema}.submission s
	WHERE s.service = $1 AND s.at < (SELECT clock_timestamp()) - $2::bigint * interval '1 microsecond'
	ORDER BY s.at LIMIT $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.submission s WHERE s.service = $1 AND s.message_id = ANY(ARRAY(SELECT message_id FROM found))`

// Sweep implements Store. Deadlines of workflows that ended as long ago go too.
func (s *Postgres) Sweep(ctx context.Context, retention time.Duration, limit int) (int, error) {
	ids, err := s.changedIDs(ctx, "remove old tasks", sweepSQL, s.cfg.Service, micros(retention), limit)
	if err != nil {
		return 0, err
	}
	if err := s.exec(ctx, "forget old messages", forgetSQL, s.cfg.Service, micros(retention), limit); err != nil {
		return len(ids), err
	}
	return len(ids), s.exec(ctx, "remove old workflows", `
		DELETE FROM {schema}.workflow WHERE service = $1
			AND deadline_at < (SELECT clock_timestamp()) - $2::bigint * interval '1 microsecond'`, s.cfg.Service, micros(retention))
}
