-- +goose Up
ALTER TABLE {schema}.task
    ADD COLUMN phase text NOT NULL DEFAULT 'execute' CHECK (phase IN ('execute', 'query', 'callback')),
    ADD COLUMN phase_tries integer NOT NULL DEFAULT 0; -- of Query or Callback, since the task came into that phase
-- The phase that the task was in after the row.
ALTER TABLE {schema}.retry_event ADD COLUMN phase text;

-- +goose Down
ALTER TABLE {schema}.retry_event DROP COLUMN phase;
ALTER TABLE {schema}.task DROP COLUMN phase_tries, DROP COLUMN phase;
