package persistence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lib/pq"
)

// claimSlack is how early a wake-up may come: a task counts as due so long
// before its time.
const claimSlack = 50 * time.Millisecond

// The ids go in sorted, so that claims, which read the primary key in order, lock
// rows in one order. The second half of the condition is the claim that the driver
// runs again with the same token: same row, counted once.
const claimSQL = `
	UPDATE {schema}.task t
	SET status = 'EXECUTING',
		attempt = t.attempt + CASE WHEN t.status = 'EXECUTING' THEN 0 ELSE 1 END,
		claim_token = $2::uuid, claimed_by = $3, lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond'
	WHERE t.id = ANY($1::bigint[]) AND t.service = $5 AND t.scene = ANY($6::text[])
		AND (t.status = 'WAIT' AND t.next_at <= clock_timestamp() + $7::bigint * interval '1 microsecond'
			OR t.status = 'EXECUTING' AND t.claim_token = $2::uuid)
	RETURNING ` + taskColumns + `,
		(extract(epoch FROM clock_timestamp() - t.created_at) * 1000000)::bigint,
		(extract(epoch FROM t.deadline_at - t.created_at) * 1000000)::bigint,
		(extract(epoch FROM clock_timestamp() - t.next_at) * 1000000)::bigint`

// Claim implements Store.
func (s *Postgres) Claim(ctx context.Context, req ClaimRequest) ([]Claimed, error) {
	if len(req.IDs) == 0 || len(req.Scenes) == 0 {
		return nil, nil
	}
	ids := slices.Clone(req.IDs)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var out []Claimed
	err := again(ctx, func() error {
		out = make([]Claimed, 0, len(ids))
		rows, err := s.db.QueryContext(ctx, s.q(claimSQL), pq.Array(ids), req.Token, req.By, micros(req.Lease), s.cfg.Service,
			pq.Array(req.Scenes), micros(claimSlack))
		if err != nil {
			return err
		}
		return each(rows, func() error {
			var c Claimed
			var elapsed, late int64
			var deadline *int64
			if err := scanTask(rows, &c.Task, &elapsed, &deadline, &late); err != nil {
				return err
			}
			c.Elapsed, c.Late = fromMicros(elapsed), fromMicros(late)
			if deadline != nil {
				c.Deadline = fromMicros(*deadline)
			}
			out = append(out, c)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("claim tasks: %w", err)
	}
	return out, nil
}

// split returns ids and tokens of claims, sorted by id.
func split(claims []Claim) (ids []int64, tokens []string) {
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(a, b Claim) int { return int(min(max(a.ID-b.ID, -1), 1)) })
	for _, c := range claims {
		ids, tokens = append(ids, c.ID), append(tokens, c.Token)
	}
	return ids, tokens
}

const renewSQL = `
	UPDATE {schema}.task t SET lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
	FROM unnest($1::bigint[], $2::uuid[]) AS c(id, token)
	WHERE t.id = c.id AND t.id = ANY($1::bigint[]) AND t.claim_token = c.token AND t.status = 'EXECUTING'
	RETURNING t.id, t.claim_token`

// Renew implements Store.
func (s *Postgres) Renew(ctx context.Context, lease time.Duration, claims []Claim) ([]Claim, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	ids, tokens := split(claims)
	var kept []Claim
	err := again(ctx, func() error {
		kept = nil
		rows, err := s.db.QueryContext(ctx, s.q(renewSQL), pq.Array(ids), pq.Array(tokens), micros(lease))
		if err != nil {
			return err
		}
		return each(rows, func() error {
			var c Claim
			if err := rows.Scan(&c.ID, &c.Token); err != nil {
				return err
			}
			kept = append(kept, c)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	return kept, nil
}

// An attempt that never began is not counted.
const releaseSQL = `
	UPDATE {schema}.task t
	SET status = 'WAIT', attempt = t.attempt - 1, claim_token = NULL, lease_until = NULL,
		dispatch_after = clock_timestamp() + $3::bigint * interval '1 microsecond'
	FROM unnest($1::bigint[], $2::uuid[]) AS c(id, token)
	WHERE t.id = c.id AND t.id = ANY($1::bigint[]) AND t.claim_token = c.token AND t.status = 'EXECUTING'
	RETURNING t.id`

// Release implements Store.
func (s *Postgres) Release(ctx context.Context, claims []Claim) ([]int64, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	ids, tokens := split(claims)
	return s.changedIDs(ctx, "release claims", releaseSQL, pq.Array(ids), pq.Array(tokens), micros(DispatchGap))
}

// changedIDs runs a statement that returns ids.
func (s *Postgres) changedIDs(ctx context.Context, doing, stmt string, args ...any) ([]int64, error) {
	var out []int64
	err := again(ctx, func() error {
		out = nil
		rows, err := s.db.QueryContext(ctx, s.q(stmt), args...)
		if err != nil {
			return err
		}
		return eachID(rows, func(id int64) { out = append(out, id) })
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, errors.Join(err, ctx.Err()))
	}
	return out, nil
}
