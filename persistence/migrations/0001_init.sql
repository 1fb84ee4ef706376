-- +goose Up
CREATE TABLE {schema}.task (
    id             bigint      NOT NULL PRIMARY KEY,
    created_at     timestamptz NOT NULL,
    next_at        timestamptz NOT NULL,
    dispatch_after timestamptz NOT NULL,
    lease_until    timestamptz,
    deadline_at    timestamptz,
    finished_at    timestamptz,
    claim_token    uuid,
    time_limit     interval, -- what the deadline gave; a person's retry gives it again
    attempt        integer     NOT NULL DEFAULT 0,
    uncharged      integer     NOT NULL DEFAULT 0,
    crashes        integer     NOT NULL DEFAULT 0,
    dispatches     smallint    NOT NULL DEFAULT 0,
    unknown        boolean     NOT NULL DEFAULT false,
    holds_key      boolean     NOT NULL DEFAULT true,
    status         text        NOT NULL
        CHECK (status IN ('INIT', 'WAIT', 'EXECUTING', 'SUCCESS', 'FAILED', 'MANUAL_REVIEW', 'CANCELLED')),
    service        text        NOT NULL,
    scene          text        NOT NULL,
    key            text        NOT NULL,
    content_type   text        NOT NULL,
    args           bytea       NOT NULL,
    headers        jsonb,
    workflow       text,
    claimed_by     text,
    stop_reason    text,
    last_class     text,
    last_error     text,
    CHECK ((finished_at IS NOT NULL) = (status IN ('SUCCESS', 'FAILED', 'CANCELLED')))
) WITH (
    -- A third of the writes are lease renewals, which stay within their page.
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

-- Ids are taken in blocks by the client before it inserts.
CREATE SEQUENCE {schema}.task_id_seq AS bigint OWNED BY {schema}.task.id;

-- A key is unique within its scene for as long as a task holds it.
CREATE UNIQUE INDEX task_key ON {schema}.task (service, scene, key) WHERE holds_key;
-- What a scan wakes.
CREATE INDEX task_waiting ON {schema}.task (service, dispatch_after) WHERE status = 'WAIT';
-- What may have to be expired: as many rows as are in flight. Not on lease_until, so that renewals stay cheap.
CREATE INDEX task_held ON {schema}.task (service, id) WHERE status IN ('INIT', 'EXECUTING');
-- What retention removes.
CREATE INDEX task_finished ON {schema}.task (service, finished_at) WHERE finished_at IS NOT NULL;

-- The journal. No foreign key: it would lock the task's row once more on each write.
CREATE TABLE {schema}.retry_event (
    id             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id        bigint      NOT NULL,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempt        integer     NOT NULL,
    policy_version integer,
    from_status    text,
    to_status      text        NOT NULL,
    reason         text        NOT NULL,
    class          text,
    actor          text,
    note           text,
    error          text,
    facts          jsonb,
    decision       jsonb
);
CREATE INDEX retry_event_task ON {schema}.retry_event (task_id, id);

-- Versions of the rules that decided.
CREATE TABLE {schema}.policy (
    service    text        NOT NULL,
    scene      text        NOT NULL,
    version    integer     NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    rules      jsonb       NOT NULL,
    PRIMARY KEY (service, scene, version)
);

-- Deadlines that several tasks share.
CREATE TABLE {schema}.workflow (
    service     text        NOT NULL,
    name        text        NOT NULL,
    deadline_at timestamptz NOT NULL,
    PRIMARY KEY (service, name)
);
CREATE INDEX workflow_deadline ON {schema}.workflow (service, deadline_at);

-- One reaper per service at a time.
CREATE TABLE {schema}.reaper (
    service text        NOT NULL PRIMARY KEY,
    holder  text        NOT NULL,
    epoch   bigint      NOT NULL,
    until   timestamptz NOT NULL
);

-- +goose Down
DROP TABLE {schema}.reaper;
DROP TABLE {schema}.workflow;
DROP TABLE {schema}.policy;
DROP TABLE {schema}.retry_event;
DROP TABLE {schema}.task;
