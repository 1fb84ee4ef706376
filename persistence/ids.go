package persistence

import (
	"context"
	"fmt"
)

// idBlock is how many ids are taken from the sequence at once.
const idBlock = 256

const idsSQL = `SELECT nextval('{schema}.task_id_seq') FROM generate_series(1, $1::int)`

// NextIDs implements Store. Ids come from the sequence in blocks, so that a
// client knows a task's id before it inserts: a statement that the driver ran
// twice then meets its own row and recognises it.
func (s *Postgres) NextIDs(ctx context.Context, n int) ([]int64, error) {
	if ids := s.freeIDs(n); ids != nil {
		return ids, nil
	}
	// Not under the lock: a silent server must not make callers wait for each
	// other's statements.
	ids, err := s.takeIDs(ctx, s.db, max(n, idBlock))
	if err != nil {
		return nil, err
	}
	s.ids.Lock()
	defer s.ids.Unlock()
	s.ids.free = append(s.ids.free, ids[n:]...)
	return ids[:n:n], nil
}

// nextIDsTx is NextIDs for a transaction of the caller. It must not wait for another
// connection, since the caller may hold the pool's last one. What it takes
// is not kept: the transaction may come to nothing.
func (s *Postgres) nextIDsTx(ctx context.Context, tx Tx, n int) ([]int64, error) {
	if ids := s.freeIDs(n); ids != nil {
		return ids, nil
	}
	return s.takeIDs(ctx, tx, n)
}

// freeIDs returns n ids of the block in hand, or nil where it has too few.
func (s *Postgres) freeIDs(n int) []int64 {
	s.ids.Lock()
	defer s.ids.Unlock()
	if n <= 0 || len(s.ids.free) < n {
		return nil
	}
	ids := s.ids.free[:n:n]
	s.ids.free = s.ids.free[n:]
	return ids
}

func (s *Postgres) takeIDs(ctx context.Context, tx Tx, n int) ([]int64, error) {
	if n <= 0 {
		return nil, nil
	}
	ids := make([]int64, 0, n)
	rows, err := tx.QueryContext(ctx, s.q(idsSQL), n)
	if err != nil {
		return nil, fmt.Errorf("take task ids: %w", err)
	}
	if err := eachID(rows, func(id int64) { ids = append(ids, id) }); err != nil {
		return nil, fmt.Errorf("take task ids: %w", err)
	}
	return ids, nil
}
