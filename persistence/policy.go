package persistence

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spillway-mq/spillway/retry"
)

// SavePolicy implements Store. Rules equal to those of the newest version get
// that version; two that save at once agree, since a version is written once.
func (s *Postgres) SavePolicy(ctx context.Context, scene string, rules retry.Rules) (int, error) {
	b, err := json.Marshal(rules)
	if err != nil {
		return 0, fmt.Errorf("encode rules: %w", err)
	}
	for range 10 {
		var version int
		err := s.db.GetContext(ctx, &version, s.q(`
			WITH newest AS (
				SELECT version, rules FROM {schema}.policy WHERE service = $1 AND scene = $2 ORDER BY version DESC LIMIT 1
			), i AS (
				INSERT INTO {schema}.policy (service, scene, version, rules)
				SELECT $1, $2, COALESCE((SELECT version FROM newest), 0) + 1, $3::jsonb
				WHERE NOT EXISTS (SELECT 1 FROM newest WHERE rules = $3::jsonb)
				ON CONFLICT DO NOTHING
				RETURNING version
			)
			SELECT version FROM i UNION ALL SELECT version FROM newest WHERE rules = $3::jsonb LIMIT 1`), s.cfg.Service, scene, string(b))
		if !errors.Is(err, sql.ErrNoRows) {
			return version, wrap(err, "save policy of "+scene)
		}
		// Another wrote this version between our read and our write.
	}
	return 0, fmt.Errorf("save policy of %s: its version keeps changing", scene)
}

// Policy implements Store.
func (s *Postgres) Policy(ctx context.Context, scene string, version int) (retry.Rules, error) {
	var b []byte
	err := s.db.GetContext(ctx, &b, s.q(`SELECT rules FROM {schema}.policy WHERE service = $1 AND scene = $2 AND version = $3`), s.cfg.Service, scene, version)
	if errors.Is(err, sql.ErrNoRows) {
		return retry.Rules{}, fmt.Errorf("%w: policy of %s, version %d", retry.ErrNotFound, scene, version)
	}
	if err != nil {
		return retry.Rules{}, fmt.Errorf("read policy of %s: %w", scene, err)
	}
	var r retry.Rules
	return r, wrap(json.Unmarshal(b, &r), "read policy of "+scene)
}
