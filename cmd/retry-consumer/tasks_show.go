package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// shownTask is a task with what its own JSON leaves out.
type shownTask struct {
	retry.Task
	// Arguments as JSON where they are JSON, else ArgumentsRaw (base64).
	Arguments    json.RawMessage     `json:"arguments,omitempty"`
	ArgumentsRaw []byte              `json:"arguments_base64,omitempty"`
	Journal      []persistence.Event `json:"journal"`
}

func (a *app) tasksShowCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "show ID...", Short: "Show tasks with everything that happened to them", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			tasks := []shownTask{}
			one := func(store *persistence.Postgres, id int64) error {
				t, err := store.Get(cmd.Context(), id)
				if err != nil {
					return err
				}
				events, err := store.Events(cmd.Context(), id)
				if err != nil {
					return err
				}
				tasks = append(tasks, shown(t, events))
				return nil
			}
			return a.withTasks(cmd.Context(), args, one, func(missing error) error {
				err := a.print(output, tasks, func(p *printer) {
					for i, t := range tasks {
						if i > 0 {
							p.line("")
						}
						writeTask(p, t, time.Now())
					}
				})
				return errors.Join(err, missing)
			})
		},
	}
	outputFlag(c, &output)
	return c
}

// withTasks calls one for each of the ids that args name, and then done with the error of those that are not there.
func (a *app) withTasks(ctx context.Context, args []string, one func(*persistence.Postgres, int64) error, done func(missing error) error) error {
	ids, err := parseIDs(args)
	if err != nil {
		return err
	}
	s, err := settings.Load(varService, varDSN)
	if err != nil {
		return err
	}
	return a.withStore(ctx, s, func(store *persistence.Postgres) error {
		var missing error
		for _, id := range ids {
			switch err := one(store, id); {
			case errors.Is(err, retry.ErrNotFound):
				missing = errors.Join(missing, err)
			case err != nil:
				return err
			}
		}
		return done(missing)
	})
}

func shown(t retry.Task, events []persistence.Event) shownTask {
	s := shownTask{Task: t, Journal: events}
	if s.Journal == nil {
		s.Journal = []persistence.Event{}
	}
	if json.Valid(t.Args) {
		s.Arguments = t.Args
	} else {
		s.ArgumentsRaw = t.Args
	}
	return s
}

// writeTask writes a task for people. now is used for hints only.
func writeTask(p *printer, t shownTask, now time.Time) {
	row := func(name, format string, args ...any) {
		p.line("  %-12s %s", name, oneLine(fmt.Sprintf(format, args...)))
	}
	p.line("task %d of service %s", t.ID, t.Service)
	row("scene", "%s", t.Scene)
	row("key", "%s", t.Key)
	switch hint := next(t.Task, now); {
	case hint == "":
		row("state", "%s", t.Status)
	default:
		row("state", "%s, %s", t.Status, hint)
	}
	counts := fmt.Sprintf("%d", t.Attempt)
	if t.Uncharged > 0 {
		counts += fmt.Sprintf(", %d of them not charged", t.Uncharged)
	}
	if t.Crashes > 0 {
		counts += fmt.Sprintf(", %d ended without a word", t.Crashes)
	}
	row("attempts", "%s", counts)
	row("created", "%s, %s ago", stamp(t.CreatedAt), span(now.Sub(t.CreatedAt)))
	if t.Status == retry.StatusWait {
		row("due", "%s", stamp(t.NextAt))
	}
	if t.DeadlineAt != nil {
		row("deadline", "%s", stamp(*t.DeadlineAt))
	}
	if t.FinishedAt != nil {
		row("ended", "%s", stamp(*t.FinishedAt))
	}
	if t.Workflow != "" {
		row("workflow", "%s", t.Workflow)
	}
	if t.ClaimedBy != "" {
		lease := ""
		if t.LeaseUntil != nil {
			lease = ", lease until " + stamp(*t.LeaseUntil)
		}
		row("claimed by", "%s%s", t.ClaimedBy, lease)
	}
	if t.Unknown {
		row("outcome", "the last attempt may have taken effect")
	}
	if t.Phase == retry.PhaseQuery || t.Phase == retry.PhaseCallback {
		what := "the other side is asked before anything is redone"
		if t.Phase == retry.PhaseCallback {
			what = "it took effect, which is to be booked"
		}
		row("phase", "%s, %s so far: %s", t.Phase, count(t.Tries, "try", "tries"), what)
	}
	if t.LastError != "" {
		row("last error", "%s: %s", t.LastClass, t.LastError)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Headers)) {
		row("header", "%s: %s", name, t.Headers[name])
	}
	row("arguments", "%s, %d bytes%s", t.ContentType, len(t.Args), preview(t.Args))
	p.line("timeline")
	writeTimeline(p, t.Task, t.Journal)
}

// preview shows short arguments that are text.
func preview(args []byte) string {
	const limit = 400
	var compact bytes.Buffer
	if json.Compact(&compact, args) == nil {
		args = compact.Bytes()
	}
	if len(args) == 0 || !utf8.Valid(args) {
		return ""
	}
	return ": " + clip(string(args), limit)
}

// writeTimeline tells the journal. The plain ways into and out of the pipeline have no rows in it; the task itself knows
// them.
func writeTimeline(p *printer, t retry.Task, events []persistence.Event) {
	var rows [][]string
	add := func(at time.Time, what string) {
		rows = append(rows, []string{"  " + stamp(at), "+" + span(max(at.Sub(t.CreatedAt), 0)), what})
	}
	if len(events) == 0 || events[0].From != "" {
		add(t.CreatedAt, "enqueued")
	}
	last := retry.Status("")
	for _, e := range events {
		add(e.At, words(e))
		last = e.To
	}
	if t.FinishedAt != nil && last != t.Status {
		what := fmt.Sprintf("ended as %s", t.Status)
		if t.Status == retry.StatusSuccess {
			what = fmt.Sprintf("attempt %d succeeded", t.Attempt)
		}
		if t.ClaimedBy != "" {
			what += " by " + t.ClaimedBy
		}
		add(*t.FinishedAt, what)
	}
	p.rows([]string{"  AT", "AFTER", "WHAT HAPPENED"}, rows)
}

// words tells a journal row.
func words(e persistence.Event) string {
	by := ""
	if e.Actor != "" {
		by = " by " + e.Actor
	}
	attempt := fmt.Sprintf("attempt %d", e.Attempt)
	if e.Attempt == 0 {
		attempt = "the inline run"
	}
	failed := func() string {
		s := attempt + " failed"
		if e.Facts != nil && e.Facts.Crashed {
			s = attempt + " ended without a word (its lease ran out)"
		} else if e.Facts != nil && e.Facts.Answer != "" {
			s = fmt.Sprintf("%s asked the other side, which said %s", attempt, e.Facts.Answer)
		} else if e.Class != "" {
			s += fmt.Sprintf(" (%s)", e.Class)
		}
		s += by
		if e.Error != "" {
			s += ": " + clip(e.Error, 200)
		}
		return s + "; "
	}
	var s string
	switch e.Reason {
	case retry.ReasonEnqueued:
		s = "enqueued" + by
	case retry.ReasonSuccess:
		s = attempt + " succeeded" + by
	case retry.ReasonReleased:
		s = attempt + " was handed back before it began" + by
	case retry.ReasonScheduleRetry:
		again := map[retry.Phase]string{retry.PhaseQuery: "asks the other side", retry.PhaseCallback: "books again"}[e.Phase]
		if again == "" {
			again = "tries again"
		}
		s = failed() + again + delay(e.Decision)
	case retry.ReasonFailPermanent:
		s = failed() + "such an error never ends well: stopped as " + string(e.To)
	case retry.ReasonManualReview:
		s = failed() + "it may have taken effect: waits for a person"
	case retry.ReasonDeadlineExceeded:
		s = failed() + "no time left: stopped as " + string(e.To)
	case retry.ReasonAttemptsExhausted:
		s = failed() + "no attempts left: stopped as " + string(e.To)
	case retry.ReasonCrashLoop:
		s = failed() + "too many such ends: waits for a person"
	case retry.ReasonExecuted:
		s = attempt + ": Execute succeeded" + by + "; what is left is to book it"
	case retry.ReasonCheckDone, retry.ReasonTookEffect:
		s = attempt + ": it had taken effect" + by + "; what is left is to book it"
	case retry.ReasonNoEffect:
		s = attempt + ": it had not taken effect" + by + ", so Execute is called again"
	case retry.ReasonOperatorRetry:
		s = fmt.Sprintf("made due now%s; was %s", by, e.From)
	case retry.ReasonOperatorSucceed, retry.ReasonOperatorFail, retry.ReasonOperatorCancel:
		s = fmt.Sprintf("ended as %s%s; was %s", e.To, by, e.From)
	default:
		s = fmt.Sprintf("%s: %s → %s%s", e.Reason, e.From, e.To, by)
		if e.Error != "" {
			s += ": " + clip(e.Error, 200)
		}
	}
	if e.Note != "" {
		s += fmt.Sprintf(" (%s)", e.Note)
	}
	return s
}

// delay says how long a decision waits, and why so long.
func delay(d *retry.Decision) string {
	if d == nil {
		return ""
	}
	var parts []string
	if d.Ceiling > 0 {
		parts = append(parts, fmt.Sprintf("%s of at most %s", span(d.Jittered), span(d.Ceiling)))
	}
	if d.RetryAfter > 0 {
		parts = append(parts, "asked to wait "+span(d.RetryAfter))
	}
	s := " in " + span(d.Delay)
	if len(parts) > 0 {
		s += " (" + strings.Join(parts, ", ") + ")"
	}
	return s
}
