package consumer

import "sync"

// slots counts free places for handlers, in all and by scene. The claimer takes,
// handlers give back; freed wakes the claimer.
type slots struct {
	mu    sync.Mutex
	free  int
	used  map[string]int
	freed chan struct{} // cap 1
}

func newSlots(n int) *slots {
	return &slots{free: n, used: map[string]int{}, freed: make(chan struct{}, 1)}
}

// take takes a place for scene, whose own bound is limit (zero: none). full says
// that no scene can get one.
func (s *slots) take(scene string, limit int) (ok, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		return false, true
	}
	if limit > 0 && s.used[scene] >= limit {
		return false, false
	}
	s.free--
	s.used[scene]++
	return true, false
}

func (s *slots) give(scene string) {
	s.mu.Lock()
	s.free++
	if s.used[scene]--; s.used[scene] == 0 {
		delete(s.used, scene)
	}
	s.mu.Unlock()
	select {
	case s.freed <- struct{}{}:
	default:
	}
}
