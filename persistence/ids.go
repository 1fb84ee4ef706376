package persistence

import (
	"context"
	"fmt"
)

// idBlock is how many ids are taken from the sequence at once.
const idBlock = 256

// NextIDs implements Store. Ids come from the sequence in blocks, so that a
// client knows a task's id before it inserts: a statement that the driver ran
// twice then meets its own row and recognises it.
func (s *Postgres) NextIDs(ctx context.Context, n int) ([]int64, error) {
	s.ids.Lock()
	defer s.ids.Unlock()
	if len(s.ids.free) < n {
		var fresh []int64
		err := s.db.SelectContext(ctx, &fresh, s.q(`SELECT nextval('{schema}.task_id_seq') FROM generate_series(1, $1::int)`), max(n, idBlock))
		if err != nil {
			return nil, fmt.Errorf("take task ids: %w", err)
		}
		s.ids.free = append(s.ids.free, fresh...)
	}
	ids := s.ids.free[:n:n]
	s.ids.free = s.ids.free[n:]
	return ids, nil
}
