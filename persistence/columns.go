package persistence

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// taskColumns are what a task is read from, in taskRow's order. Never "*": a
// newer schema may have more.
const taskColumns = `t.id, t.service, t.scene, t.key, t.status, t.attempt, t.uncharged, t.crashes, t.unknown, t.args, t.content_type,
	t.headers, t.created_at, t.next_at, t.dispatch_after, t.deadline_at, t.workflow, t.lease_until, t.claim_token, t.claimed_by,
	t.finished_at, t.stop_reason, t.last_error, t.last_class, t.phase, t.phase_tries`

type scanner interface{ Scan(dest ...any) error }

// scanTask reads taskColumns and, after them, what else the statement selects.
func scanTask(row scanner, t *retry.Task, more ...any) error {
	var headers, workflow, token, by, reason, lastError, class sql.NullString
	var deadline, lease, finished sql.NullTime
	dest := append([]any{&t.ID, &t.Service, &t.Scene, &t.Key, &t.Status, &t.Attempt, &t.Uncharged, &t.Crashes, &t.Unknown, &t.Args, &t.ContentType,
		&headers, &t.CreatedAt, &t.NextAt, &t.DispatchAfter, &deadline, &workflow, &lease, &token, &by,
		&finished, &reason, &lastError, &class, &t.Phase, &t.Tries}, more...)
	if err := row.Scan(dest...); err != nil {
		return fmt.Errorf("read task: %w", err)
	}
	t.Workflow, t.ClaimToken, t.ClaimedBy = workflow.String, token.String, by.String
	t.StopReason, t.LastError, t.LastClass = retry.Reason(reason.String), lastError.String, retry.Class(class.String)
	t.DeadlineAt, t.LeaseUntil, t.FinishedAt = timePtr(deadline), timePtr(lease), timePtr(finished)
	if headers.Valid {
		t.Headers = readHeaders(headers.String)
	}
	return nil
}

// readHeaders takes what a person's hand may have put there too: an error here would fail
// the whole batch that the task was claimed with, again and again.
func readHeaders(text string) map[string]string {
	var values map[string]any
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil
	}
	out := make(map[string]string, len(values))
	for k, v := range values {
		if s, ok := v.(string); ok {
			out[k] = s
		} else {
			b, _ := json.Marshal(v) // came from JSON, so it cannot fail
			out[k] = string(b)
		}
	}
	return out
}

func timePtr(t sql.NullTime) *time.Time {
	if !t.Valid {
		return nil
	}
	return &t.Time
}

// eventArrays are the journal's columns as arrays, one element a row.
type eventArrays struct {
	class, actor, note, facts, decision []string
	policy                              []int64
	has                                 []bool
}

func (a *eventArrays) add(e *Event) error {
	if e == nil {
		e = &Event{}
		a.has = append(a.has, false)
	} else {
		a.has = append(a.has, true)
	}
	facts, decision := "", ""
	if e.Facts != nil {
		b, err := json.Marshal(e.Facts)
		if err != nil {
			return fmt.Errorf("encode facts: %w", err)
		}
		facts = string(b)
	}
	if e.Decision != nil {
		b, err := json.Marshal(e.Decision)
		if err != nil {
			return fmt.Errorf("encode decision: %w", err)
		}
		decision = string(b)
	}
	a.class = append(a.class, string(e.Class))
	a.actor = append(a.actor, retry.CutString(e.Actor, maxActorLen))
	a.note = append(a.note, retry.CutString(e.Note, MaxErrorLen))
	a.facts = append(a.facts, facts)
	a.decision = append(a.decision, decision)
	a.policy = append(a.policy, int64(e.PolicyVersion))
	return nil
}

func (a *eventArrays) any() bool {
	for _, h := range a.has {
		if h {
			return true
		}
	}
	return false
}

// maxActorLen bounds names of consumers and people in bytes.
const maxActorLen = 255
