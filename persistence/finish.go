package persistence

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// resultSQL is a batch of results as a table r.
const resultSQL = `
WITH r AS (
	SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::boolean[],
			$9::text[], $10::integer[], $11::boolean[])
		AS r(id, token, status, reason, delay, class, error, unknown, phase, tries, idle)
)`

// setSQL is what any end of an attempt writes. The claim's token stays on the
// row, so that a finish that the driver runs again finds that it was applied.
const setSQL = `
	status = r.status, lease_until = NULL, dispatches = 0,
	next_at = CASE WHEN r.status = 'WAIT' THEN clock_timestamp() + r.delay * interval '1 microsecond' ELSE t.next_at END,
	dispatch_after = CASE WHEN r.status <> 'WAIT' THEN t.dispatch_after
		WHEN r.delay > $12::bigint THEN clock_timestamp() + (r.delay - $13::bigint) * interval '1 microsecond'
		ELSE clock_timestamp() + (r.delay + $14::bigint) * interval '1 microsecond' END,
	finished_at = CASE WHEN r.status IN ('SUCCESS', 'FAILED') THEN clock_timestamp() END,
	stop_reason = CASE WHEN r.status IN ('FAILED', 'MANUAL_REVIEW') THEN r.reason END,
	last_error = COALESCE(NULLIF(r.error, ''), t.last_error), last_class = COALESCE(NULLIF(r.class, ''), t.last_class),
	unknown = r.unknown, phase = r.phase, phase_tries = r.tries`

// eventSQL writes the journal rows of what u changed.
const eventSQL = `, j AS (
	INSERT INTO {schema}.retry_event (task_id, attempt, policy_version, from_status, to_status, reason, class, actor, note, error, facts, decision, phase)
	SELECT u.id, u.attempt, NULLIF(e.policy, 0), e.was, r.status, r.reason, NULLIF(r.class, ''), NULLIF(e.actor, ''), NULLIF(e.note, ''),
		NULLIF(r.error, ''), NULLIF(e.facts, '')::jsonb, NULLIF(e.decision, '')::jsonb, r.phase
	FROM u JOIN r ON r.id = u.id
		JOIN unnest($1::bigint[], $15::boolean[], $16::bigint[], $17::text[], $18::text[], $19::text[], $20::text[], $21::text[])
			AS e(id, has, policy, was, actor, note, facts, decision) ON e.id = u.id AND e.has
) SELECT id FROM u`

const finishSQL = resultSQL + `, l AS (
	SELECT t.id FROM {schema}.task t JOIN r ON r.id = t.id
	WHERE t.id = ANY($1::bigint[]) AND ` + finishFence + ` AND t.status IN ('INIT', 'EXECUTING')
	ORDER BY t.id FOR NO KEY UPDATE OF t
), u AS (
	UPDATE {schema}.task t SET ` + setSQL + `, uncharged = t.uncharged + r.idle::integer
	FROM l JOIN r ON r.id = l.id WHERE t.id = l.id
	RETURNING t.id, t.attempt
)` + eventSQL

// What the scan saw is checked again. The claim's token gives way to one made for this
// call: whoever held the claim has lost it, and a second run of the statement finds
// what the first did.
const expireSQL = resultSQL + `, l AS (
	SELECT t.id FROM {schema}.task t JOIN r ON r.id = t.id
	WHERE t.id = ANY($1::bigint[]) AND t.service = $22 AND t.status IN ('INIT', 'EXECUTING')
		AND t.claim_token IS NOT DISTINCT FROM NULLIF(r.token, '')::uuid
		AND (t.lease_until IS NULL OR t.lease_until < clock_timestamp())
	ORDER BY t.id FOR NO KEY UPDATE OF t
), u AS (
	UPDATE {schema}.task t SET ` + setSQL + `, claim_token = $23::uuid, crashes = t.crashes + 1,
		uncharged = t.uncharged + CASE WHEN t.status = 'INIT' THEN 0 ELSE 1 END
	FROM l JOIN r ON r.id = l.id WHERE t.id = l.id
	RETURNING t.id, t.attempt
)` + eventSQL

// Finish implements Store.
func (s *Postgres) Finish(ctx context.Context, results []Result) ([]Finished, error) {
	if len(results) == 0 {
		return nil, nil
	}
	applied, err := s.end(ctx, "finish tasks", finishSQL, retry.StatusExecuting, results)
	if err != nil {
		return nil, err
	}
	if len(applied) < len(results) {
		// Either the claim was lost, or the driver ran our statement twice and
		// the second run found nothing left to do.
		var missing []Claim
		for _, r := range results {
			if !applied[r.ID] && r.Token != "" {
				missing = append(missing, r.Claim)
			}
		}
		ids, tokens := split(missing)
		before, err := s.changedIDs(ctx, "look at finished tasks", finishedSQL, pq.Array(ids), pq.Array(tokens))
		if err != nil {
			return nil, err
		}
		for _, id := range before {
			applied[id] = true
		}
	}
	out := make([]Finished, len(results))
	for i, r := range results {
		out[i] = Finished{ID: r.ID, Applied: applied[r.ID], Far: r.Status == retry.StatusWait && r.Delay > s.cfg.Horizon}
	}
	return out, nil
}

const finishedSQL = `
	SELECT t.id FROM {schema}.task t JOIN unnest($1::bigint[], $2::uuid[]) AS c(id, token) ON t.id = c.id
	WHERE t.id = ANY($1::bigint[]) AND t.claim_token = c.token AND t.status NOT IN ('INIT', 'EXECUTING')`

// Expire implements Store.
func (s *Postgres) Expire(ctx context.Context, results []Result) ([]int64, error) {
	if len(results) == 0 {
		return nil, nil
	}
	mark := uuid.NewString()
	applied, err := s.end(ctx, "expire claims", expireSQL, "", results, s.cfg.Service, mark)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, 0, len(results))
	for _, r := range results {
		ids = append(ids, r.ID)
	}
	if len(applied) < len(results) {
		return s.marked(ctx, ids, mark)
	}
	return ids, nil
}

// end runs a statement that ends attempts, with its journal rows. was is the
// status that the journal names as the one before, where an event does not.
func (s *Postgres) end(ctx context.Context, doing, stmt string, was retry.Status, results []Result, more ...any) (map[int64]bool, error) {
	params, err := s.resultParams(was, results)
	if err != nil {
		return nil, err
	}
	ids, err := s.changedIDs(ctx, doing, stmt, append(params, more...)...)
	if err != nil {
		return nil, err
	}
	applied := make(map[int64]bool, len(ids))
	for _, id := range ids {
		applied[id] = true
	}
	return applied, nil
}

// resultParams are the parameters of resultSQL, setSQL and eventSQL.
func (s *Postgres) resultParams(was retry.Status, results []Result) ([]any, error) {
	n := len(results)
	ids, delays := make([]int64, n), make([]int64, n)
	tokens, statuses, reasons, classes, errs, from := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	unknown, idle := make([]bool, n), make([]bool, n)
	phases, tries := make([]string, n), make([]int64, n)
	var events eventArrays
	given := make(map[int64]bool, n)
	for i, r := range results {
		if given[r.ID] {
			// The statement joins by id: one result could be written under the other's claim.
			return nil, retry.NewFieldError("results", fmt.Sprintf("two for task %d", r.ID), "at most one for each task")
		}
		if r.Status == retry.StatusExecuting || r.Status == retry.StatusCancelled || !retry.StatusExecuting.CanBecome(r.Status) {
			return nil, retry.NewFieldError("status", string(r.Status), "WAIT, SUCCESS, FAILED or MANUAL_REVIEW for an attempt that ended")
		}
		given[r.ID] = true
		ids[i], tokens[i], statuses[i], reasons[i] = r.ID, r.Token, string(r.Status), string(r.Reason)
		delays[i], classes[i], unknown[i] = micros(r.Delay), string(r.Class), r.Unknown
		errs[i] = retry.CutString(r.Error, MaxErrorLen)
		phases[i], tries[i], idle[i] = string(r.Phase.OrExecute()), int64(r.Tries), r.Idle
		if !retry.Phase(phases[i]).Valid() {
			return nil, retry.NewFieldError("phase", phases[i], "execute, query or callback")
		}
		from[i] = string(was)
		if r.Event != nil && r.Event.From != "" {
			from[i] = string(r.Event.From)
		}
		if err := events.add(r.Event); err != nil {
			return nil, err
		}
	}
	return []any{pq.Array(ids), pq.Array(tokens), pq.Array(statuses), pq.Array(reasons), pq.Array(delays), pq.Array(classes), pq.Array(errs),
		pq.Array(unknown), pq.Array(phases), pq.Array(tries), pq.Array(idle), micros(s.cfg.Horizon), micros(s.lead()), micros(DispatchGap),
		pq.Array(events.has), pq.Array(events.policy), pq.Array(from), pq.Array(events.actor), pq.Array(events.note),
		pq.Array(events.facts), pq.Array(events.decision)}, nil
}
