package persistence

import (
	"context"
	"fmt"
	"time"

	"github.com/lib/pq"
)

const wakeColumns = `t.id, t.scene, (extract(epoch FROM t.next_at - clock_timestamp()) * 1000000)::bigint, t.dispatch_after`

func (s *Postgres) wakes(ctx context.Context, doing, stmt string, args ...any) ([]Wake, error) {
	var out []Wake
	err := again(ctx, func() error {
		out = nil
		rows, err := s.db.QueryContext(ctx, s.q(stmt), args...)
		if err != nil {
			return err
		}
		return each(rows, func() error {
			var w Wake
			var in int64
			if err := rows.Scan(&w.ID, &w.Scene, &in, &w.Seen); err != nil {
				return err
			}
			w.In = fromMicros(in)
			out = append(out, w)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return out, nil
}

// The clock is read in a subquery: a volatile function in the condition itself
// could not be compared by the index.
const undispatchedSQL = `
	SELECT ` + wakeColumns + ` FROM {schema}.task t
	WHERE t.service = $1 AND t.status = 'WAIT' AND t.dispatch_after <= (SELECT clock_timestamp())
	ORDER BY t.dispatch_after LIMIT $2`

// Undispatched implements Store.
func (s *Postgres) Undispatched(ctx context.Context, limit int) ([]Wake, error) {
	return s.wakes(ctx, "find undispatched tasks", undispatchedSQL, s.cfg.Service, limit)
}

const wakesSQL = `
	SELECT ` + wakeColumns + ` FROM {schema}.task t
	WHERE t.id = ANY($1::bigint[]) AND t.service = $2 AND t.status = 'WAIT'`

// Wakes implements Store.
func (s *Postgres) Wakes(ctx context.Context, ids []int64) ([]Wake, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return s.wakes(ctx, "read wake-ups", wakesSQL, pq.Array(ids), s.cfg.Service)
}

// The gap grows only where the scan's time had come: a wake-up that is published before it (by publisher.Wake) says
// nothing of a loss, and the new time may be the one that was seen, so that a second run would find the row again.
const dispatchedSQL = `
	WITH l AS (
		SELECT t.id FROM {schema}.task t JOIN unnest($1::bigint[], $2::timestamptz[]) AS w(id, seen) ON t.id = w.id
		WHERE t.id = ANY($1::bigint[]) AND t.service = $5 AND t.status = 'WAIT' AND t.dispatch_after = w.seen
		ORDER BY t.id FOR NO KEY UPDATE OF t
	)
	UPDATE {schema}.task t
	SET dispatches = LEAST(t.dispatches + CASE WHEN t.dispatch_after <= clock_timestamp() THEN 1 ELSE 0 END, 1000),
		dispatch_after = GREATEST(t.next_at, clock_timestamp())
			+ LEAST($3::bigint * 2 ^ LEAST(t.dispatches, 20), $4::bigint) * interval '1 microsecond'
	FROM l WHERE t.id = l.id`

// Dispatched implements Store.
func (s *Postgres) Dispatched(ctx context.Context, wakes []Wake) error {
	if len(wakes) == 0 {
		return nil
	}
	ids, seen := make([]int64, len(wakes)), make([]string, len(wakes))
	for i, w := range wakes {
		ids[i], seen[i] = w.ID, w.Seen.Format(time.RFC3339Nano)
	}
	return s.exec(ctx, "push out dispatch times", dispatchedSQL, pq.Array(ids), pq.Array(seen), micros(DispatchGap), micros(MaxDispatchGap), s.cfg.Service)
}

const redispatchSQL = `
	WITH l AS (
		SELECT t.id FROM {schema}.task t
		WHERE t.id = ANY($1::bigint[]) AND t.service = $4 AND t.status = 'WAIT'
		ORDER BY t.id FOR NO KEY UPDATE
	)
	UPDATE {schema}.task t
	SET dispatch_after = GREATEST(t.next_at, clock_timestamp() + $2::bigint * interval '1 microsecond') + $3::bigint * interval '1 microsecond'
	FROM l WHERE t.id = l.id
	RETURNING ` + wakeColumns

// Redispatch implements Store.
func (s *Postgres) Redispatch(ctx context.Context, ids []int64, d time.Duration) ([]Wake, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return s.wakes(ctx, "put wake-ups off", redispatchSQL, pq.Array(ids), micros(d), micros(DispatchGap), s.cfg.Service)
}

const undeliveredSQL = `
	WITH l AS (
		SELECT t.id FROM {schema}.task t
		WHERE t.id = ANY($1::bigint[]) AND t.service = $2 AND t.status = 'WAIT' AND t.dispatch_after > t.next_at
		ORDER BY t.id FOR NO KEY UPDATE
	)
	UPDATE {schema}.task t SET dispatch_after = t.next_at
	FROM l WHERE t.id = l.id`

// Undelivered implements Store. A task beyond the horizon keeps its time.
func (s *Postgres) Undelivered(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	return s.exec(ctx, "note undelivered wake-ups", undeliveredSQL, pq.Array(ids), s.cfg.Service)
}

func (s *Postgres) exec(ctx context.Context, doing, stmt string, args ...any) error {
	err := again(ctx, func() error {
		_, err := s.db.ExecContext(ctx, s.q(stmt), args...)
		return err
	})
	return wrap(err, doing)
}
