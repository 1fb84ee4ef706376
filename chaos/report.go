package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// report is what a run found.
type report struct {
	outcome
	Struck     []struck
	Recovery   map[kind][]time.Duration // from the end of a server's fault to the next claim, sorted
	Violations []violation
}

// verdict reads everything once more, checks it as a whole and gathers the figures.
func (h *harness) verdict(ctx context.Context) (*report, error) {
	r := &report{Struck: h.inject.struck(), Recovery: map[kind][]time.Duration{}}
	o := &r.outcome
	h.mu.Lock()
	o.said = h.said
	h.mu.Unlock()
	o.actions = h.person.actions()
	o.Calls = h.down.all()
	if err := h.read(ctx, o); err != nil {
		return nil, err
	}
	for id, list := range o.Changes {
		for _, v := range checkTask(history{list, o.Calls[place(list[0].Scene, list[0].Key)]}) {
			h.violate(v)
		}
		j := explain.Journal{Task: o.Tasks[id], Events: o.Events[id], Rules: map[int]retry.Rules{}}
		for _, version := range explain.Versions(j.Events) {
			rules, err := h.store.Policy(ctx, j.Task.Scene, version)
			if err != nil && !errors.Is(err, retry.ErrNotFound) { // Recheck says if one is missing
				return nil, err
			}
			if err == nil {
				j.Rules[version] = rules
			}
		}
		for _, v := range checkJournal(list, j) {
			h.violate(v)
		}
	}
	rows := map[string]bool{}
	for _, t := range o.Tasks {
		rows[place(t.Scene, t.Key)] = true
	}
	for at, calls := range o.Calls { // inline runs that left no row
		if !rows[at] {
			for _, v := range checkTask(history{nil, calls}) {
				h.violate(v)
			}
		}
	}
	if !h.cfg.ExpectViolation { // that one ends before the tasks do
		for _, v := range checkEnd(*o) {
			h.violate(v)
		}
	}
	r.recover()
	r.Violations = h.violations()
	return r, nil
}

// read reads what Postgres holds.
func (h *harness) read(ctx context.Context, o *outcome) error {
	var err error
	if o.Changes, err = readChanges(ctx, h.store.DB()); err != nil {
		return err
	}
	o.Tasks, o.Events = map[int64]retry.Task{}, map[int64][]persistence.Event{}
	for before := int64(0); ; {
		page, err := h.store.List(ctx, persistence.Filter{Before: before, Limit: 1000})
		if err != nil {
			return err
		}
		for _, t := range page {
			o.Tasks[t.ID] = t
			if o.Events[t.ID], err = h.store.Events(ctx, t.ID); err != nil {
				return err
			}
			before = t.ID
		}
		if len(page) < 1000 {
			break
		}
	}
	open, err := h.open(ctx)
	if err != nil {
		return err
	}
	o.Open = map[int64]bool{}
	for _, id := range open {
		o.Open[id] = true
	}
	var keys []string
	if err := h.store.DB().SelectContext(ctx, &keys, `SELECT key FROM `+auditSchema+`.business`); err != nil {
		return err
	}
	o.Business = map[string]bool{}
	for _, key := range keys {
		o.Business[key] = true
	}
	return nil
}

// recover measures how long after a server was back the next attempt was claimed. Other faults go on meanwhile, and count.
func (r *report) recover() {
	var claimed []time.Time
	for _, list := range r.Changes {
		for _, ch := range list {
			if ch.New.Status == retry.StatusExecuting && ch.Old.Status == retry.StatusWait {
				claimed = append(claimed, ch.At)
			}
		}
	}
	slices.SortFunc(claimed, time.Time.Compare)
	for _, s := range r.Struck {
		if s.Err != nil || (s.Kind != crashPostgres && s.Kind != crashBroker && s.Kind != memoryAlarm) {
			continue
		}
		if i, _ := slices.BinarySearchFunc(claimed, s.Healed, time.Time.Compare); i < len(claimed) {
			r.Recovery[s.Kind] = append(r.Recovery[s.Kind], claimed[i].Sub(s.Healed))
		}
	}
	for _, list := range r.Recovery {
		slices.Sort(list)
	}
}

// write prints the report. A violation comes with its timeline, and with how to run it again.
func (h *harness) write(r *report) {
	h.say("\nfaults")
	byKind := counts(r.Struck)
	total := 0
	for _, k := range kinds() {
		h.say("  %-20s %4d", k, byKind[k])
		total += byKind[k]
	}
	h.say("  %-20s %4d", "all", total)
	if m := missed(r.Struck); m != "" {
		h.say("  could not be made: %s", m)
	}
	by, lost := map[string]int{}, 0
	for _, t := range r.Tasks {
		by[string(t.Status)]++
	}
	accepted := 0
	for _, list := range r.said {
		for _, s := range list {
			switch s.Event {
			case eventAccepted:
				accepted++
			case "lost_claim":
				lost++
			}
		}
	}
	expired, claimed := 0, 0
	for _, list := range r.Changes {
		for _, ch := range list {
			if held(ch.Old) && ch.New.Crashes > ch.Old.Crashes {
				expired++
			}
			if ch.New.Status == retry.StatusExecuting && ch.Old.Status != retry.StatusExecuting {
				claimed++
			}
		}
	}
	calls, effects, long := h.down.totals()
	h.say("\ntasks       %d, of which %d were accepted by word: %s", len(r.Tasks), accepted, pairs(by))
	h.say("attempts    %d claimed, %d leases ran out, %d results came too late, %d acts of a person", claimed, expired, lost, len(r.actions))
	h.say("effects     %d of %d calls, %d of them over a lease long", effects, calls, long)
	for _, k := range []kind{crashPostgres, crashBroker, memoryAlarm} {
		if list := r.Recovery[k]; len(list) > 0 {
			h.say("recovery    after %-15s p50 %.2f s, max %.2f s (until the next claim)", string(k)+":", list[len(list)/2].Seconds(), list[len(list)-1].Seconds())
		}
	}
	h.say("journals    %d, every decision made again", len(r.Tasks))
	h.say("violations  %d", len(r.Violations))
	shown := map[int64]bool{}
	for _, v := range r.Violations {
		if v.Task == 0 || shown[v.Task] || len(shown) == 10 {
			continue
		}
		shown[v.Task] = true
		h.say("")
		for _, other := range r.Violations {
			if other.Task == v.Task {
				h.say("%s", other)
			}
		}
		h.say("%s", strings.Join(r.timeline(v.Task), "\n"))
	}
	switch {
	case len(r.Violations) > 0 && !h.cfg.ExpectViolation:
		h.say("\nVIOLATED. Run it again: make chaos CHAOS_SEED=%d CHAOS_SECONDS=%.0f", h.cfg.Seed, h.cfg.Load.Seconds())
	case len(r.Violations) > 0:
		h.say("\nA violation was found, as it should be.")
	case h.cfg.ExpectViolation:
		h.say("\nNO VIOLATION was found, and there should be one. Seed %d", h.cfg.Seed)
	default:
		h.say("\nEvery promise held. Seed %d", h.cfg.Seed)
	}
}

func pairs(m map[string]int) string {
	var out []string
	for _, s := range retry.Statuses() {
		if n := m[string(s)]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(out, ", ")
}

// timeline tells a task's story: the changes of its row, its journal, the calls and the faults meanwhile.
func (r *report) timeline(id int64) []string {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	add := func(at time.Time, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf(format, args...)})
	}
	t := r.Tasks[id]
	for _, ch := range r.Changes[id] {
		if ch.Old.Status == ch.New.Status && ch.Old.Token == ch.New.Token && !step(ch) {
			add(ch.At, "row      lease renewed to %s by %s", ch.New.Lease.Format(clock), ch.Writer)
			continue
		}
		text := fmt.Sprintf("row      %s -> %s by %s, attempt %d", cmp.Or(string(ch.Old.Status), "(new)"), ch.New.Status, ch.Writer, ch.New.Attempt)
		if ch.New.Phase != ch.Old.Phase {
			text += ", phase " + string(ch.New.Phase)
		}
		if held(ch.New) {
			text += fmt.Sprintf(", claim %s, lease to %s", ch.New.Token, ch.New.Lease.Format(clock))
		}
		if ch.New.Crashes != ch.Old.Crashes {
			text += fmt.Sprintf(", crashes %d", ch.New.Crashes)
		}
		add(ch.At, "%s", text)
	}
	for _, e := range r.Events[id] {
		add(e.At, "journal  %s -> %s, attempt %d: %s by %s %s %s", cmp.Or(string(e.From), "(new)"), e.To, e.Attempt, e.Reason, e.Actor, e.Note, retry.CutString(e.Error, 150))
	}
	for _, c := range r.Calls[place(t.Scene, t.Key)] {
		add(c.Begin, "call     %s: %s %s by %s, attempt %d, run %s", c.Step, c.Fate, c.Said, c.Process, c.Attempt, c.Run)
		if !c.Effect.IsZero() {
			add(c.Effect, "EFFECT   of run %s", c.Run)
		}
		if !c.End.IsZero() {
			add(c.End, "call     of run %s ended", c.Run)
		}
	}
	byTime := func(a, b line) int { return a.at.Compare(b.at) }
	slices.SortStableFunc(lines, byTime)
	if n := len(lines); n > 0 {
		first, last := lines[0].at, lines[n-1].at
		for _, s := range r.Struck {
			if s.Healed.After(first) && s.Began.Before(last) {
				add(s.Began, "fault    %s %s, until %s", s.Kind, s.Target, s.Healed.Format(clock))
			}
		}
		slices.SortStableFunc(lines, byTime)
	}
	for name, list := range r.said {
		for _, s := range list {
			if s.Task == id && s.Event != "finished" {
				lines = append(lines, line{text: fmt.Sprintf("told     %s: %s %s", name, s.Event, s.Text)})
			}
		}
	}
	out := []string{fmt.Sprintf("  timeline of task %d, scene %s, key %s:", id, t.Scene, t.Key)}
	for _, l := range lines {
		at := "            "
		if !l.at.IsZero() {
			at = l.at.Local().Format(clock)
		}
		out = append(out, "    "+at+"  "+l.text)
	}
	return out
}

const clock = "15:04:05.000"
