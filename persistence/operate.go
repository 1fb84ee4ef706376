package persistence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// verbs says from which states a person may do what, what follows and what the
// journal calls it.
var verbs = map[Verb]struct {
	to     retry.Status
	from   []string
	reason retry.Reason
}{
	Retry:   {retry.StatusWait, []string{"WAIT", "MANUAL_REVIEW", "FAILED", "CANCELLED"}, retry.ReasonOperatorRetry},
	Succeed: {retry.StatusSuccess, []string{"INIT", "WAIT", "EXECUTING", "MANUAL_REVIEW", "FAILED"}, retry.ReasonOperatorSucceed},
	Fail:    {retry.StatusFailed, []string{"INIT", "WAIT", "EXECUTING", "MANUAL_REVIEW"}, retry.ReasonOperatorFail},
	Cancel:  {retry.StatusCancelled, []string{"INIT", "WAIT", "EXECUTING", "MANUAL_REVIEW"}, retry.ReasonOperatorCancel},
}

// The claim's token goes, so that a run in flight loses: its next renewal says
// so, and its finish writes nothing. A retry gets a new budget: the attempts and
// crashes so far no longer count, and the time that the deadline gave is given again.
const operateSQL = `
WITH found AS (
	SELECT t.id, t.status AS was FROM {schema}.task t WHERE t.id = $1 AND t.service = $2 AND t.status = ANY($4::text[])
		AND t.claim_token IS DISTINCT FROM $9::uuid FOR UPDATE
), u AS (
	UPDATE {schema}.task t
	SET status = $3, claim_token = $9::uuid, lease_until = NULL, dispatches = 0,
		finished_at = CASE WHEN $3 IN ('SUCCESS', 'FAILED', 'CANCELLED') THEN clock_timestamp() END,
		stop_reason = CASE WHEN $3 IN ('FAILED', 'CANCELLED') THEN $5 END,
		next_at = CASE WHEN $3 = 'WAIT' THEN clock_timestamp() ELSE t.next_at END,
		dispatch_after = CASE WHEN $3 = 'WAIT' THEN clock_timestamp() + $8::bigint * interval '1 microsecond' ELSE t.dispatch_after END,
		uncharged = CASE WHEN $3 = 'WAIT' THEN t.attempt ELSE t.uncharged END,
		crashes = CASE WHEN $3 = 'WAIT' THEN 0 ELSE t.crashes END,
		deadline_at = CASE WHEN $3 = 'WAIT' THEN clock_timestamp() + t.time_limit ELSE t.deadline_at END,
		holds_key = t.holds_key OR $3 = 'WAIT',
		phase = COALESCE(NULLIF($10, ''), t.phase),
		phase_tries = CASE WHEN $3 = 'WAIT' THEN 0 ELSE t.phase_tries END,
		unknown = CASE WHEN $10 = '' THEN t.unknown ELSE $10 = 'query' END
	FROM found WHERE t.id = found.id
	RETURNING ` + taskColumns + `, found.was
), j AS (
	INSERT INTO {schema}.retry_event (task_id, attempt, from_status, to_status, reason, actor, note, phase)
	SELECT u.id, u.attempt, u.was, $3, $5, $6, NULLIF($7, ''), u.phase FROM u
)
SELECT ` + taskColumns + ` FROM u t`

// Operate implements Store.
func (s *Postgres) Operate(ctx context.Context, a Action) (retry.Task, error) {
	v, ok := verbs[a.Verb]
	if !ok {
		return retry.Task{}, retry.NewFieldError("verb", string(a.Verb), "retry, succeed, fail or cancel")
	}
	if strings.TrimSpace(a.Actor) == "" {
		return retry.Task{}, retry.NewFieldError("actor", a.Actor, "the name of the person who acts")
	}
	if a.Phase != "" && (a.Verb != Retry || !a.Phase.Valid()) {
		return retry.Task{}, retry.NewFieldError("phase", string(a.Phase), "execute, query or callback, with retry only")
	}
	var t retry.Task
	mark := uuid.NewString()
	err := again(ctx, func() error {
		return scanTask(s.db.QueryRowContext(ctx, s.q(operateSQL), a.ID, s.cfg.Service, string(v.to), pq.Array(v.from), string(v.reason),
			retry.CutString(a.Actor, maxActorLen), retry.CutString(a.Note, MaxErrorLen), micros(DispatchGap), mark, string(a.Phase)), &t)
	})
	var pe *pq.Error
	switch {
	case err == nil:
		return t, nil
	case errors.As(err, &pe) && pe.Code == "23505":
		return retry.Task{}, fmt.Errorf("%s task %d: %w: a newer task has its key", a.Verb, a.ID, retry.ErrKeyConflict)
	case !errors.Is(err, sql.ErrNoRows):
		return retry.Task{}, fmt.Errorf("%s task %d: %w", a.Verb, a.ID, err)
	}
	now, err := s.Get(ctx, a.ID)
	if err != nil {
		return retry.Task{}, err
	}
	if now.ClaimToken == mark {
		return now, nil
	}
	return now, fmt.Errorf("%w: cannot %s task %d: it is %s, and must be one of %s", retry.ErrState, a.Verb, a.ID, now.Status, strings.Join(v.from, ", "))
}
