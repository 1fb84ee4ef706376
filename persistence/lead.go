package persistence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Lead implements Store.
func (s *Postgres) Lead(ctx context.Context, holder string, ttl time.Duration) (epoch int64, ok bool, err error) {
	err = again(ctx, func() error {
		return s.db.QueryRowContext(ctx, s.q(`
			INSERT INTO {schema}.reaper AS l (service, holder, epoch, until)
			VALUES ($1, $2, 1, clock_timestamp() + $3::bigint * interval '1 microsecond')
			ON CONFLICT (service) DO UPDATE
			SET holder = excluded.holder, until = clock_timestamp() + $3::bigint * interval '1 microsecond',
				epoch = l.epoch + CASE WHEN l.holder = excluded.holder THEN 0 ELSE 1 END
			WHERE l.holder = excluded.holder OR l.until < clock_timestamp()
			RETURNING epoch`), s.cfg.Service, holder, micros(ttl)).Scan(&epoch)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("take the reaper's lease: %w", err)
	}
	return epoch, true, nil
}

// Resign implements Store.
func (s *Postgres) Resign(ctx context.Context, holder string) error {
	return s.exec(ctx, "give the reaper's lease up", `
		UPDATE {schema}.reaper SET until = clock_timestamp() - interval '1 microsecond' WHERE service = $1 AND holder = $2`, s.cfg.Service, holder)
}
