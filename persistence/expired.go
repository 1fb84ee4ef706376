package persistence

import (
	"context"
	"fmt"

	"github.com/lib/pq"
)

// A lease that is NULL, by whoever's hand, counts as over.
const expiredSQL = `
	SELECT t.id, COALESCE(t.claim_token::text, ''), t.scene, t.status, t.attempt, t.crashes, t.uncharged, COALESCE(t.claimed_by, ''),
		(extract(epoch FROM clock_timestamp() - t.created_at) * 1000000)::bigint,
		COALESCE((extract(epoch FROM t.deadline_at - t.created_at) * 1000000)::bigint, 0),
		COALESCE((extract(epoch FROM clock_timestamp() - t.lease_until) * 1000000)::bigint, 0), t.phase, t.phase_tries
	FROM {schema}.task t
	WHERE t.service = $1 AND t.status IN ('INIT', 'EXECUTING') AND t.id > $2 AND t.scene = ANY($3::text[])
		AND (t.lease_until IS NULL OR t.lease_until < clock_timestamp())
	ORDER BY t.id LIMIT $4`

// Expired implements Store.
func (s *Postgres) Expired(ctx context.Context, scenes []string, after int64, limit int) ([]Expired, error) {
	var out []Expired
	err := again(ctx, func() error {
		out = nil
		rows, err := s.db.QueryContext(ctx, s.q(expiredSQL), s.cfg.Service, after, pq.Array(scenes), limit)
		if err != nil {
			return err
		}
		return each(rows, func() error {
			var e Expired
			var elapsed, deadline, ended int64
			err := rows.Scan(&e.ID, &e.Token, &e.Scene, &e.Status, &e.Attempt, &e.Crashes, &e.Uncharged, &e.ClaimedBy, &elapsed, &deadline, &ended, &e.Phase, &e.Tries)
			if err != nil {
				return err
			}
			e.Elapsed, e.Deadline, e.LeaseEnded = fromMicros(elapsed), fromMicros(deadline), fromMicros(ended)
			out = append(out, e)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("find expired claims: %w", err)
	}
	return out, nil
}
