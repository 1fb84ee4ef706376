package publisher

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// scene is a retry.Scene with its defaults worked out once.
type scene struct {
	retry.Scene
	local retry.Local
	rules retry.Rules
	// version of rules in the store; zero until it was saved. Two that save at
	// once get the same one.
	version atomic.Int64
}

func newScene(s retry.Scene) *scene {
	return &scene{Scene: s, local: s.Local.WithDefaults(), rules: s.Rules(topology.Grid())}
}

// deadline of a task that Do calls now.
func (s *scene) deadline(t Task) time.Duration {
	if t.Deadline != 0 {
		return t.Deadline
	}
	return s.rules.Policy.Deadline
}

// scenes finds scenes by name.
type scenes struct {
	// open says that any valid name will do; then byName grows.
	open bool

	mu     sync.RWMutex
	byName map[string]*scene
}

func newScenes(list []retry.Scene) *scenes {
	s := &scenes{open: len(list) == 0, byName: make(map[string]*scene, len(list))}
	for _, sc := range list {
		s.byName[sc.Name] = newScene(sc)
	}
	return s
}

// get returns the scene or a *retry.FieldError.
func (s *scenes) get(name string) (*scene, error) {
	s.mu.RLock()
	sc := s.byName[name]
	s.mu.RUnlock()
	if sc != nil {
		return sc, nil
	}
	if err := retry.CheckScene(name); err != nil {
		return nil, err
	}
	if !s.open {
		return nil, retry.NewFieldError("scene", name, "one of those that the publisher was made with: "+s.names())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sc = s.byName[name]; sc == nil {
		sc = newScene(retry.Scene{Name: name})
		s.byName[name] = sc
	}
	return sc, nil
}

func (s *scenes) names() string {
	var names []string
	for name := range s.byName { // never written where the set is closed
		names = append(names, name)
	}
	slices.Sort(names)
	return retry.CutString(strings.Join(names, ", "), 400)
}

// policyVersion returns the version of the scene's rules, which it saves once.
func (p *Publisher) policyVersion(ctx context.Context, s *scene) (int, error) {
	if v := s.version.Load(); v != 0 {
		return int(v), nil
	}
	v, err := p.cfg.Store.SavePolicy(ctx, s.Name, s.rules)
	if err != nil {
		return 0, err
	}
	s.version.Store(int64(v))
	return v, nil
}
