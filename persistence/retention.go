package persistence

import (
	"context"
	"time"
)

// In one statement a task goes with its journal. The second condition checks
// again what the first saw: a person may have made the task wait again.
const sweepSQL = `
WITH old AS (
	SELECT t.id FROM {schema}.task t
	WHERE t.service = $1 AND t.finished_at < (SELECT clock_timestamp()) - $2::bigint * interval '1 microsecond'
	ORDER BY t.finished_at LIMIT $3
), gone AS (
	DELETE FROM {schema}.task t WHERE t.id = ANY(ARRAY(SELECT id FROM old))
		AND t.finished_at < clock_timestamp() - $2::bigint * interval '1 microsecond'
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
