package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/explain"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

const explainLong = `Tell what happened to tasks and why, and make every decision again.

For each decision in the journal: the version of the policy that decided, the parts of the delay (ceiling, jitter with the
input of its hash, Retry-After, rounding to the grid), and whether the same rules and facts give the same decision today.
The rows must also fit each other and the task. Where a version of the policy, the facts or the decision is missing, nothing
can be checked, and that counts as not matching.

It only reads. A task that moves meanwhile is read again.

Exit codes: 0 all matches; 1 something does not, or a task is not there; 2, 3 and 4 as for every command.`

// explained is a task with its journal and what became of checking it.
type explained struct {
	shownTask
	explain.Report
	Next string `json:"next"`
}

func (a *app) explainCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "explain ID...", Short: "Tell why tasks are where they are, and check every decision", Long: explainLong, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			tasks := []explained{}
			wrong := false
			one := func(store *persistence.Postgres, id int64) error {
				j, err := readJournal(cmd.Context(), store, id)
				if err != nil {
					return err
				}
				e := explained{shownTask: shown(j.Task, j.Events), Report: explain.Recheck(j)}
				e.Next = whatNext(e, time.Now())
				wrong = wrong || !e.Matches
				tasks = append(tasks, e)
				return nil
			}
			return a.withTasks(cmd.Context(), args, one, func(missing error) error {
				err := a.print(output, tasks, func(p *printer) {
					for i, t := range tasks {
						if i > 0 {
							p.line("")
						}
						writeExplained(p, t, time.Now())
					}
				})
				if err = errors.Join(err, missing); err == nil && wrong {
					return said(exitFailed)
				}
				return err
			})
		},
	}
	outputFlag(c, &output)
	return c
}

// readJournal reads what Recheck needs. The task is read before and after its rows, until both are the same: else a
// task that moves would seem not to fit its journal.
func readJournal(ctx context.Context, store persistence.Store, id int64) (explain.Journal, error) {
	j := explain.Journal{Rules: map[int]retry.Rules{}}
	for try := 0; ; try++ {
		before, err := store.Get(ctx, id)
		if err != nil {
			return j, err
		}
		if j.Events, err = store.Events(ctx, id); err != nil {
			return j, err
		}
		if j.Task, err = store.Get(ctx, id); err != nil {
			return j, err
		}
		if sameMoment(before, j.Task) {
			break
		}
		if try == 20 {
			return j, fmt.Errorf("task %d changes too fast to be looked at; try again", id)
		}
	}
	for _, version := range explain.Versions(j.Events) {
		switch rules, err := store.Policy(ctx, j.Task.Scene, version); {
		case errors.Is(err, retry.ErrNotFound): // the check says so
		case err != nil:
			return j, err
		default:
			j.Rules[version] = rules
		}
	}
	return j, nil
}

// sameMoment reports whether a task did not move between two reads. Renewals and new wake-ups do not count.
func sameMoment(a, b retry.Task) bool {
	a.LeaseUntil, b.LeaseUntil = nil, nil
	a.DispatchAfter, b.DispatchAfter = time.Time{}, time.Time{}
	return reflect.DeepEqual(a, b)
}
