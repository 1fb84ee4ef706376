package persistence

import (
	"context"
	"fmt"

	"github.com/spillway-mq/spillway/retry"
)

// The change of phase fences the journal row: a second run of the statement finds the task in
// the phase already and writes nothing.
const advanceSQL = `
WITH u AS (
	UPDATE {schema}.task t SET phase = $3, phase_tries = 0, unknown = ($3 = 'query')
	WHERE t.id = $1 AND t.claim_token = $2::uuid AND t.status = 'EXECUTING' AND (t.phase <> $3 OR t.unknown <> ($3 = 'query'))
	RETURNING t.id, t.attempt
), j AS (
	INSERT INTO {schema}.retry_event (task_id, attempt, from_status, to_status, reason, actor, note, phase)
	SELECT u.id, u.attempt, 'EXECUTING', 'EXECUTING', $4, NULLIF($5, ''), NULLIF($6, ''), $3 FROM u
)
SELECT EXISTS (SELECT 1 FROM u)
	OR EXISTS (SELECT 1 FROM {schema}.task t WHERE t.id = $1 AND t.claim_token = $2::uuid AND t.status = 'EXECUTING' AND t.phase = $3)`

// Advance implements Store.
func (s *Postgres) Advance(ctx context.Context, step Step) (bool, error) {
	if !step.Phase.Valid() {
		return false, retry.NewFieldError("phase", string(step.Phase), "execute, query or callback")
	}
	var held bool
	err := again(ctx, func() error {
		return s.db.QueryRowContext(ctx, s.q(advanceSQL), step.ID, step.Token, string(step.Phase), string(step.Event.Reason),
			retry.CutString(step.Event.Actor, maxActorLen), retry.CutString(step.Event.Note, MaxErrorLen)).Scan(&held)
	})
	if err != nil {
		return false, fmt.Errorf("advance task %d: %w", step.ID, err)
	}
	return held, nil
}
