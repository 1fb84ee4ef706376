package storetest

import (
	"flag"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

const (
	soon = 10 * time.Minute
	far  = 60 * 24 * time.Hour // beyond the horizon and any deadline
	// back is how far a time is moved into the past, so that what it stood for is over.
	back = -365 * 24 * time.Hour
	// maxTasks bounds the tasks of a run: with few of them calls meet.
	maxTasks = 5
)

// modelTests make calls at random, on the store and on the model, and compare after each what was answered, every
// row and every journal. -rapid.checks and -rapid.steps make it longer; a run that fails is shrunk. Unless
// checks are asked for, a slow machine makes fewer.
func modelTests(add adder) {
	add("Model/random calls", func(h *harness) {
		lossy, lose := h.Lossy(h)
		m := &machine{h: h, lossy: lossy, lose: lose, rules: map[string]retry.Rules{}, versions: map[string]int{}}
		policy := retry.Policy{Kind: retry.Fixed, Base: time.Millisecond, MaxAttempts: 3, Deadline: time.Hour}
		for name, unknown := range map[string]retry.UnknownMode{scene: retry.UnknownReview, "scene.b": retry.UnknownRepeat} {
			var err error
			m.rules[name] = retry.Rules{Policy: policy, Unknown: unknown}
			m.versions[name], err = h.Store.SavePolicy(h.ctx, name, m.rules[name])
			h.ok(err)
		}
		const patience = 15 * time.Second
		began, checks, failed := time.Now(), 0, false
		f := flag.Lookup("rapid.checks")
		asked := f.Value.String() != f.DefValue
		rapid.Check(h.T, func(t *rapid.T) {
			if !asked && !failed && time.Since(began) > patience {
				return
			}
			failed = true // until the end is reached: what failed is run again, to shrink it
			h.Empty(h)
			m.model = &model{horizon: h.Horizon, workflows: map[string]span{}, messages: map[string]int64{}}
			m.last, m.results, m.released, m.seen, m.wakes = persistence.ClaimRequest{}, nil, nil, nil, nil
			m.now.to = h.Now(h)
			t.Repeat(m.actions())
			m.settle(t, m.tasks...)
			failed = false
			checks++
		})
		h.Logf("%d checks", checks)
	})
}

// machine makes the calls.
type machine struct {
	*model
	h        *harness
	lossy    persistence.Store
	lose     func(int)
	rules    map[string]retry.Rules
	versions map[string]int

	// What earlier calls were given or returned, to be given again when it may be stale.
	last     persistence.ClaimRequest
	results  []persistence.Result
	released []persistence.Claim
	seen     []persistence.Expired
	wakes    []persistence.Wake
}

func (m *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":               m.check,
		"insert":         m.insert,
		"submit":         m.submit,
		"claim":          m.claim,
		"claim again":    m.claimAgain,
		"renew":          m.renew,
		"finish":         m.finish,
		"finish again":   m.finishAgain,
		"release":        m.release,
		"release again":  m.releaseAgain,
		"find expired":   m.expired,
		"expire":         m.expire,
		"operate":        m.operate,
		"time passes":    m.pass,
		"lease dropped":  m.dropLease,
		"sweep":          m.sweep,
		"wakes":          m.findWakes,
		"undispatched":   m.undispatched,
		"redispatch":     m.redispatch,
		"undelivered":    m.undelivered,
		"dispatched":     m.dispatched,
		"another's hand": m.stranger,
	}
}

// check is what holds after every call: the rows and journals were compared with the model's as part of
// it, and each journal can be explained.
func (m *machine) check(t *rapid.T) {
	rules := map[int]retry.Rules{}
	for _, task := range m.live() {
		rules[m.versions[task.row.Scene]] = m.rules[task.row.Scene]
		if r := explain.Recheck(explain.Journal{Task: task.row, Events: task.journal, Rules: rules}); !r.Matches {
			t.Fatalf("the journal of task %d does not hold: %v, %+v", task.row.ID, r.Problems, r.Rows)
		}
	}
}

// call makes a call, one in four over a connection that loses an answer meanwhile, so that the driver
// runs a statement twice.
func (m *machine) call(t *rapid.T, f func(s persistence.Store) error) {
	lost := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 2}).Draw(t, "lost answer")
	m.now.from = m.now.to // nothing happened since, and what the last call set is not later
	var err error
	if lost == 0 {
		err = f(m.h.Store)
	} else {
		m.lose(lost)
		err = f(m.lossy)
		m.lose(0)
	}
	m.now.to = m.h.Now(m.h)
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// settle compares all rows with the model's, and the journals of those that changed and of some. At the end of a
// run some are all.
func (m *machine) settle(t *rapid.T, some ...*modelTask) {
	list, err := m.h.Store.List(m.h.ctx, persistence.Filter{Limit: 1000})
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	if n := len(m.live()); len(list) != n {
		t.Errorf("%d rows, want %d", len(list), n)
	}
	for _, task := range m.tasks {
		id := task.row.ID
		i := slices.IndexFunc(list, func(r retry.Task) bool { return r.ID == id })
		if i >= 0 && task.untouched(list[i]) && !slices.Contains(some, task) {
			continue
		}
		events, err := m.h.Store.Events(m.h.ctx, id)
		if err != nil {
			t.Fatalf("journal: %v", err)
		}
		switch {
		case task.gone && (i >= 0 || len(events) > 0):
			t.Errorf("task %d was removed and is there, with %d journal rows", id, len(events))
		case task.gone:
		case i < 0:
			t.Errorf("task %d is gone", id)
		default:
			for _, wrong := range m.model.settle(task, task.was, list[i], events) {
				t.Errorf("task %d: %s", id, wrong)
			}
			task.row, task.was = list[i], list[i]
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// want compares what a call returned.
func want[T comparable](t *rapid.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s is %v, want %v", what, got, want)
	}
}

// within wants a time since or until a moment of the row, measured by the call.
func (m *machine) within(t *rapid.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Fatalf("%s is %v, want %v to %v", what, got, least, most)
	}
}

// pick draws some of the tasks, perhaps one twice: mostly of those that the call is about, where there are any. Without
// any task it makes one.
func (m *machine) pick(t *rapid.T, about func(*modelTask) bool) []*modelTask {
	if len(m.live()) == 0 {
		m.insert(t)
	}
	from := m.live()
	some := slices.DeleteFunc(m.live(), func(t *modelTask) bool { return !about(t) })
	if len(some) > 0 && rapid.IntRange(0, 3).Draw(t, "others too") > 0 {
		from = some
	}
	var out []*modelTask
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(from)-1), 1, 3).Draw(t, "tasks") {
		out = append(out, from[i])
	}
	return out
}

func anyTask(*modelTask) bool { return true }

func waits(t *modelTask) bool { return t.row.Status == retry.StatusWait }

// hasPast: a retry has something to give back.
func hasPast(t *modelTask) bool { return !t.held() && (t.row.Crashes > 0 || !t.holdsKey) }

func ended(t *modelTask) bool { return t.row.Status.Terminal() }

// one draws one of some things, by its place, which reads better in the log of a failed run.
func one[T any](t *rapid.T, label string, of []T) T {
	return of[rapid.IntRange(0, len(of)-1).Draw(t, label)]
}

func ids(tasks []*modelTask) []int64 {
	out := make([]int64, len(tasks))
	for i, t := range tasks {
		out[i] = t.row.ID
	}
	return out
}

// claims draws a claim of each of some tasks: mostly the right one.
func (m *machine) claims(t *rapid.T) []persistence.Claim {
	var out []persistence.Claim
	for _, task := range m.pick(t, (*modelTask).held) {
		c := persistence.Claim{ID: task.row.ID, Token: task.row.ClaimToken}
		switch kind := rapid.SampledFrom([]string{"right", "right", "right", "stale", "foreign", "unknown"}).Draw(t, "token"); kind {
		case "stale":
			if len(task.tokens) > 0 {
				c.Token = one(t, "stale", task.tokens)
			}
		case "foreign":
			c.Token = one(t, "other", m.live()).row.ClaimToken
		case "unknown":
			c.Token = ""
		}
		if c.Token == "" {
			c.Token = uuid.NewString()
		}
		out = append(out, c)
	}
	return out
}

func sameIDs(t *rapid.T, what string, got, want []int64) {
	t.Helper()
	a, b := slices.Clone(got), slices.Clone(want)
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(slices.Compact(a), slices.Compact(b)) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}
