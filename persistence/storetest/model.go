package storetest

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// model is what a store should hold: the rules of a task's life (docs/design.md) once more, without
// a database. Each call's rule is in model_rules.go; model_machine.go makes calls at random, on the store and here.
type model struct {
	horizon   time.Duration
	now       span // of the last call
	tasks     []*modelTask
	workflows map[string]span  // when their deadlines are
	messages  map[string]int64 // taken from the submit queue, and their tasks
}

// modelTask is a row as it should be.
type modelTask struct {
	row retry.Task
	was retry.Task // row before the call
	// fresh are the times that the last call's statement read from the database's clock: known to lie within its
	// span, and exactly once the row was looked at.
	fresh map[Column]span
	// marked: the last call put a token of the store's own in the place of the claim's.
	marked bool
	// holdsKey, dispatches and limit are columns that no method shows. Limit is the time that the deadline gave.
	holdsKey   bool
	dispatches int
	limit      time.Duration
	journal    []persistence.Event
	created    bool // by the last call
	gone       bool // removed by a sweep
	// uncounted: the last call gave an attempt back, the only one that may lower the number.
	uncounted bool
	// tokens that the claim had so far, for stale calls.
	tokens []string
	// claims are what the holder of each token was told.
	claims map[string]retry.Task
}

// span is when something happened: not before from, not after to.
type span struct{ from, to time.Time }

func (s span) plus(d time.Duration) span { return span{s.from.Add(d), s.to.Add(d)} }

// notBefore is the later of the span's moment and t.
func (s span) notBefore(t time.Time) span {
	later := func(a time.Time) time.Time {
		if a.Before(t) {
			return t
		}
		return a
	}
	return span{later(s.from), later(s.to)}
}

func (s span) has(t time.Time) bool { return !t.Before(s.from) && !t.After(s.to) }

// past reports whether t is over. No rule asks about a time within the span: what a call sets is now, or
// far from it.
func (m *model) past(t time.Time) bool { return !t.After(m.now.from) }

// live are the tasks that no sweep removed.
func (m *model) live() []*modelTask {
	return slices.DeleteFunc(slices.Clone(m.tasks), func(t *modelTask) bool { return t.gone })
}

func (m *model) find(id int64) *modelTask {
	for _, t := range m.tasks {
		if t.row.ID == id && !t.gone {
			return t
		}
	}
	return nil
}

// holder is the task that holds a key.
func (m *model) holder(scene, key string) *modelTask {
	for _, t := range m.tasks {
		if !t.gone && t.holdsKey && t.row.Scene == scene && t.row.Key == key {
			return t
		}
	}
	return nil
}

// held reports whether somebody has the right to act on the task, in a lease or after it.
func (t *modelTask) held() bool {
	return t.row.Status == retry.StatusInit || t.row.Status == retry.StatusExecuting
}

// set notes that a column holds a moment of the span.
func (t *modelTask) set(c Column, s span) {
	t.fresh[c] = s
	t.put(c, s.from)
}

// put sets a column to an exact time. Rows that were copied keep theirs.
func (t *modelTask) put(c Column, at time.Time) {
	switch c {
	case CreatedAt:
		t.row.CreatedAt = at
	case NextAt:
		t.row.NextAt = at
	case DispatchAfter:
		t.row.DispatchAfter = at
	case LeaseUntil:
		t.row.LeaseUntil = &at
	case DeadlineAt:
		t.row.DeadlineAt = &at
	case FinishedAt:
		t.row.FinishedAt = &at
	}
}

// column returns a time of a row, nil for NULL.
func column(row *retry.Task, c Column) *time.Time {
	switch c {
	case CreatedAt:
		return &row.CreatedAt
	case NextAt:
		return &row.NextAt
	case DispatchAfter:
		return &row.DispatchAfter
	case LeaseUntil:
		return row.LeaseUntil
	case DeadlineAt:
		return row.DeadlineAt
	case FinishedAt:
		return row.FinishedAt
	}
	panic("no column " + c)
}

// token makes token the claim's.
func (t *modelTask) token(token string) {
	t.row.ClaimToken = token
	if !slices.Contains(t.tokens, token) {
		t.tokens = append(t.tokens, token)
	}
}

// settle compares a task with its row and journal after a call and takes over what only the store could know. It returns
// what is wrong.
func (m *model) settle(t *modelTask, before, got retry.Task, journal []persistence.Event) []string {
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for c, s := range t.fresh {
		at := column(&got, c)
		if at == nil {
			bad("%s is NULL, want %v to %v", c, s.from, s.to)
			continue
		}
		if !s.has(*at) {
			bad("%s is %v, want %v to %v", c, *at, s.from, s.to)
		}
		t.put(c, *at)
	}
	clear(t.fresh)
	if t.marked {
		if got.ClaimToken == "" || slices.Contains(t.tokens, got.ClaimToken) {
			bad("the claim's token is %q still", got.ClaimToken)
		}
		t.row.ClaimToken, t.marked = got.ClaimToken, false
	}
	wrong = append(wrong, differences(t.row, got)...)
	if !t.created {
		wrong = append(wrong, t.illegal(before, got)...)
	}
	if got.FinishedAt != nil != got.Status.Terminal() {
		bad("%s with finished_at %v", got.Status, got.FinishedAt)
	}
	if got.Uncharged > got.Attempt || got.Uncharged < 0 || got.Crashes < 0 {
		bad("%d attempts, %d uncharged, %d crashes", got.Attempt, got.Uncharged, got.Crashes)
	}
	if t.created && got.DeadlineAt != nil {
		t.limit = got.DeadlineAt.Sub(got.CreatedAt)
		if got.Workflow != "" {
			m.workflows[got.Workflow] = span{*got.DeadlineAt, *got.DeadlineAt}
		}
	}
	t.created, t.uncounted = false, false
	if t.held() {
		t.claims[got.ClaimToken] = got
	}
	if len(journal) != len(t.journal) {
		bad("%d journal rows, want %d: %+v", len(journal), len(t.journal), journal)
		return wrong
	}
	for i, e := range journal {
		want := t.journal[i]
		if want.At.IsZero() && m.now.has(e.At) {
			want.At = e.At
		}
		if !reflect.DeepEqual(want, e) {
			bad("journal row %d is %+v, want %+v", i, e, want)
		}
		t.journal[i] = e
	}
	return wrong
}

// untouched reports whether the last call neither changed the task nor should have.
func (t *modelTask) untouched(got retry.Task) bool {
	return !t.gone && !t.created && !t.marked && len(t.fresh) == 0 && len(differences(t.was, got)) == 0 && len(differences(t.row, got)) == 0
}

// illegal says what no task may ever do, whatever the call.
func (t *modelTask) illegal(before, got retry.Task) []string {
	var wrong []string
	if before.Status != got.Status && !before.Status.CanBecome(got.Status) {
		wrong = append(wrong, fmt.Sprintf("%s became %s", before.Status, got.Status))
	}
	least := before.Attempt
	if t.uncounted {
		least--
	}
	if got.Attempt < least || got.Attempt > before.Attempt+1 {
		wrong = append(wrong, fmt.Sprintf("attempt %d after %d", got.Attempt, before.Attempt))
	}
	return wrong
}

// differences names the fields in which two rows differ.
func differences(want, got retry.Task) []string {
	var out []string
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		if a, b := plain(w.Field(i).Interface()), plain(g.Field(i).Interface()); !reflect.DeepEqual(a, b) {
			out = append(out, fmt.Sprintf("%s is %v, want %v", w.Type().Field(i).Name, b, a))
		}
	}
	return out
}

// plain makes values comparable that may differ in their form.
func plain(v any) any {
	switch x := v.(type) {
	case time.Time:
		return x.UTC().Format(time.RFC3339Nano)
	case *time.Time:
		if x == nil {
			return "NULL"
		}
		return x.UTC().Format(time.RFC3339Nano)
	case []byte:
		return string(bytes.Clone(x))
	case map[string]string:
		if len(x) == 0 {
			return map[string]string{}
		}
	}
	return v
}

func autoKey(id int64) string { return "auto:" + strconv.FormatInt(id, 10) }
