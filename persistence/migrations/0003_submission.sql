-- +goose Up
-- Messages of the submit queue that were taken, so that one that comes again stores nothing.
CREATE TABLE {schema}.submission (
    service    text        NOT NULL,
    message_id text        NOT NULL,
    task_id    bigint      NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (service, message_id)
);
-- What retention removes.
CREATE INDEX submission_at ON {schema}.submission (service, at);

-- +goose Down
DROP TABLE {schema}.submission;
