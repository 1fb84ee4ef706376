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

// Sweep implements Store. Deadlines of workflows that ended as long ago go too.
func (s *Postgres) Sweep(ctx context.Context, retention time.Duration, limit int) (int, error) {
	ids, err := s.changedIDs(ctx, "remove old tasks", sweepSQL, s.cfg.Service, micros(retention), limit)
	if err != nil {
		return 0, err
	}
	return len(ids), s.exec(ctx, "remove old workflows", `
		DELETE FROM {schema}.workflow WHERE service = $1
			AND deadline_at < (SELECT clock_timestamp()) - $2::bigint * interval '1 microsecond'`, s.cfg.Service, micros(retention))
}
