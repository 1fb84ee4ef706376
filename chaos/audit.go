package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// The audit is a table of the harness that a trigger fills, in the same transaction as each change of a task: who wrote (the
// connection's application_name is the process's), when by the database's clock, and what was before. Renewals are in it;
// changes of nothing but dispatch times are not.
const auditSQL = `
DROP SCHEMA IF EXISTS {audit} CASCADE;
CREATE SCHEMA {audit};
CREATE TABLE {audit}.business (key text NOT NULL PRIMARY KEY); -- written beside EnqueueTx
CREATE TABLE {audit}.change (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    op text NOT NULL,
    writer text NOT NULL DEFAULT current_setting('application_name'),
    scene text, key text,
    old_status text, new_status text,
    old_token text, new_token text,
    old_lease timestamptz, new_lease timestamptz,
    old_by text, new_by text,
    old_attempt int, new_attempt int,
    old_uncharged int, new_uncharged int,
    old_crashes int, new_crashes int,
    old_phase text, new_phase text,
    old_unknown boolean, new_unknown boolean
);
CREATE INDEX ON {audit}.change (task_id, id);
CREATE FUNCTION {audit}.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND (OLD.status, OLD.attempt, OLD.crashes, OLD.uncharged, OLD.phase, OLD.unknown)
            = (NEW.status, NEW.attempt, NEW.crashes, NEW.uncharged, NEW.phase, NEW.unknown)
        AND OLD.claim_token IS NOT DISTINCT FROM NEW.claim_token AND OLD.lease_until IS NOT DISTINCT FROM NEW.lease_until THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {audit}.change (task_id, op, scene, key, new_status, new_token, new_lease, new_by, new_attempt, new_uncharged, new_crashes,
            new_phase, new_unknown)
        VALUES (NEW.id, TG_OP, NEW.scene, NEW.key, NEW.status, NEW.claim_token, NEW.lease_until, NEW.claimed_by, NEW.attempt, NEW.uncharged, NEW.crashes,
            NEW.phase, NEW.unknown);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO {audit}.change (task_id, op, scene, key, old_status, old_token, old_lease, old_by, old_attempt, old_uncharged, old_crashes)
        VALUES (OLD.id, TG_OP, OLD.scene, OLD.key, OLD.status, OLD.claim_token, OLD.lease_until, OLD.claimed_by, OLD.attempt, OLD.uncharged, OLD.crashes);
    ELSE
        INSERT INTO {audit}.change (task_id, op, scene, key, old_status, new_status, old_token, new_token, old_lease, new_lease, old_by, new_by,
            old_attempt, new_attempt, old_uncharged, new_uncharged, old_crashes, new_crashes, old_phase, new_phase, old_unknown, new_unknown)
        VALUES (NEW.id, TG_OP, NEW.scene, NEW.key, OLD.status, NEW.status, OLD.claim_token, NEW.claim_token, OLD.lease_until, NEW.lease_until,
            OLD.claimed_by, NEW.claimed_by, OLD.attempt, NEW.attempt, OLD.uncharged, NEW.uncharged, OLD.crashes, NEW.crashes,
            OLD.phase, NEW.phase, OLD.unknown, NEW.unknown);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {schema}.task FOR EACH ROW EXECUTE FUNCTION {audit}.note();`

// side is a task's row before or after a change.
type side struct {
	Status    retry.Status
	Token     string
	Lease     time.Time // zero: none
	By        string
	Attempt   int
	Uncharged int
	Crashes   int
	Phase     retry.Phase
	Unknown   bool
}

// change is a row of the audit.
type change struct {
	ID     int64
	Task   int64
	At     time.Time
	Op     string // INSERT, UPDATE or DELETE
	Writer string
	Scene  string
	Key    string
	Old    side // zero for INSERT
	New    side // zero for DELETE
}

const changesSQL = `
SELECT id, task_id, at, op, writer, scene, key,
    COALESCE(old_status, ''), COALESCE(old_token, ''), old_lease, COALESCE(old_by, ''), COALESCE(old_attempt, 0), COALESCE(old_uncharged, 0), COALESCE(old_crashes, 0), COALESCE(old_phase, ''),
    COALESCE(old_unknown, false),
    COALESCE(new_status, ''), COALESCE(new_token, ''), new_lease, COALESCE(new_by, ''), COALESCE(new_attempt, 0), COALESCE(new_uncharged, 0), COALESCE(new_crashes, 0), COALESCE(new_phase, ''),
    COALESCE(new_unknown, false)
FROM ` + auditSchema + `.change WHERE cardinality($1::bigint[]) = 0 OR task_id = ANY($1::bigint[]) ORDER BY id`

// readChanges returns the changes of these tasks, or of all, by task and in order. A task's changes are made under its row's
// lock, so whoever sees one sees all before it.
func readChanges(ctx context.Context, db *sqlx.DB, tasks ...int64) (map[int64][]change, error) {
	if tasks == nil {
		tasks = []int64{}
	}
	rows, err := db.QueryContext(ctx, changesSQL, pq.Array(tasks))
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	defer func() { _ = rows.Close() }()
	out := map[int64][]change{}
	for rows.Next() {
		var c change
		var was, is sql.NullTime
		if err := rows.Scan(&c.ID, &c.Task, &c.At, &c.Op, &c.Writer, &c.Scene, &c.Key,
			&c.Old.Status, &c.Old.Token, &was, &c.Old.By, &c.Old.Attempt, &c.Old.Uncharged, &c.Old.Crashes, &c.Old.Phase, &c.Old.Unknown,
			&c.New.Status, &c.New.Token, &is, &c.New.By, &c.New.Attempt, &c.New.Uncharged, &c.New.Crashes, &c.New.Phase, &c.New.Unknown); err != nil {
			return nil, fmt.Errorf("read the audit: %w", err)
		}
		c.Old.Lease, c.New.Lease = was.Time, is.Time
		out[c.Task] = append(out[c.Task], c)
	}
	return out, rows.Err()
}

// touched returns the tasks that changed since the change after, and the newest change. Numbers are drawn before a transaction
// commits, so it looks a good deal further back.
func touched(ctx context.Context, db *sqlx.DB, after int64) (tasks []int64, last int64, err error) {
	if err := db.GetContext(ctx, &last, `SELECT COALESCE(max(id), 0) FROM `+auditSchema+`.change`); err != nil {
		return nil, 0, err
	}
	err = db.SelectContext(ctx, &tasks, `SELECT DISTINCT task_id FROM `+auditSchema+`.change WHERE id > $1`, after-1000)
	return tasks, last, err
}
