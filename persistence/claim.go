package persistence

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// claimSlack is how early a wake-up may come: a task counts as due so long
// before its time.
const claimSlack = 50 * time.Millisecond

// Statements on several rows lock them first, in order of id: an UPDATE takes its rows
// in whatever order its plan finds them, and two of them that share rows would lock each
// other out. The second half of the condition is the claim that the driver runs again with
// the same token: same row, counted once.
const claimSQL = `
	WITH l AS (
		SELECT t.id FROM {schema}.task t
		WHERE t.id = ANY($1::bigint[]) AND t.service = $5 AND t.scene = ANY($6::text[])
			AND (t.status = 'WAIT' AND t.next_at <= clock_timestamp() + $7::bigint * interval '1 microsecond'
				OR t.status = 'EXECUTING' AND t.claim_token = $2::uuid)
		ORDER BY t.id FOR NO KEY UPDATE
	)
	UPDATE {schema}.task t
	SET status = 'EXECUTING',
		attempt = t.attempt + CASE WHEN t.status = 'EXECUTING' THEN 0 ELSE 1 END,
		claim_token = $2::uuid, claimed_by = $3, lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond'
	FROM l WHERE t.id = l.id
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
		rows, err := s.db.QueryContext(ctx, s.q(claimSQL), pq.Array(ids), req.Token, retry.CutString(req.By, maxActorLen), micros(req.Lease), s.cfg.Service,
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
	slices.SortFunc(claims, func(a, b Claim) int { return cmp.Compare(a.ID, b.ID) })
	for _, c := range claims {
		ids, tokens = append(ids, c.ID), append(tokens, c.Token)
	}
	return ids, tokens
}

// heldSQL locks the rows of those claims (ids $1, tokens $2) that still hold and are
// a consumer's: an inline run, in INIT, has no attempt to give back.
const heldSQL = `
		SELECT t.id FROM {schema}.task t JOIN unnest($1::bigint[], $2::uuid[]) AS c(id, token) ON t.id = c.id
		WHERE t.id = ANY($1::bigint[]) AND t.claim_token = c.token AND t.status = 'EXECUTING'
		ORDER BY t.id FOR NO KEY UPDATE OF t`

const renewSQL = `
	WITH l AS (
		SELECT t.id FROM {schema}.task t JOIN unnest($1::bigint[], $2::uuid[]) AS c(id, token) ON t.id = c.id
		WHERE t.id = ANY($1::bigint[]) AND ` + renewFence + ` AND t.status IN ('INIT', 'EXECUTING')
		ORDER BY t.id FOR NO KEY UPDATE OF t
	)
	UPDATE {schema}.task t SET lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
	FROM l WHERE t.id = l.id
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

// An attempt that never began is not counted. The claim's token gives way to one made for
// this call, by which a second run of the statement finds what the first did.
const releaseSQL = `
	WITH l AS (` + heldSQL + `)
	UPDATE {schema}.task t
	SET status = 'WAIT', attempt = t.attempt - 1, claim_token = $4::uuid, lease_until = NULL,
		dispatch_after = clock_timestamp() + $3::bigint * interval '1 microsecond'
	FROM l WHERE t.id = l.id
	RETURNING t.id`

// Release implements Store.
func (s *Postgres) Release(ctx context.Context, claims []Claim) ([]int64, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	ids, tokens := split(claims)
	mark := uuid.NewString()
	out, err := s.changedIDs(ctx, "release claims", releaseSQL, pq.Array(ids), pq.Array(tokens), micros(DispatchGap), mark)
	if err != nil || len(out) == len(claims) {
		return out, err
	}
	return s.marked(ctx, ids, mark)
}

const markedSQL = `
	SELECT t.id FROM {schema}.task t
	WHERE t.id = ANY($1::bigint[]) AND t.claim_token = $2::uuid AND t.status <> 'EXECUTING' ORDER BY t.id`

// marked returns those of the ids that carry the token of one call. Where the driver ran a
// statement twice, the second run found nothing left to change, and only the
// mark tells what the first changed.
func (s *Postgres) marked(ctx context.Context, ids []int64, mark string) ([]int64, error) {
	return s.changedIDs(ctx, "look at changed tasks", markedSQL, pq.Array(ids), mark)
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
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return out, nil
}
