package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/nearest"
	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func (a *app) tasksCommand() *cobra.Command {
	return group("tasks", "List, show and act on the service's tasks",
		a.tasksListCommand(), a.tasksShowCommand(),
		a.operateCommand(persistence.Retry, "Make stopped or waiting tasks due now, with a new budget of attempts and time"),
		a.operateCommand(persistence.Cancel, "End tasks as CANCELLED; a run in flight can no longer change them"),
		a.operateCommand(persistence.Succeed, "End tasks as SUCCESS, because you know that they are done"),
		a.operateCommand(persistence.Fail, "End tasks as FAILED"),
	)
}

type listFlags struct {
	output, key, workflow string
	scenes, states        []string
	older, newer          time.Duration
	limit                 int
	before                int64
	count                 bool
}

func (a *app) tasksListCommand() *cobra.Command {
	var f listFlags
	c := &cobra.Command{
		Use: "list", Short: "List tasks, newest first, or count them", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := f.filter()
			if err != nil {
				return err
			}
			s, err := settings.Load(varService, varDSN)
			if err != nil {
				return err
			}
			return a.withStore(cmd.Context(), s, func(store *persistence.Postgres) error {
				if f.count {
					counts, err := store.Count(cmd.Context())
					if err != nil {
						return err
					}
					return a.printCounts(f.output, counts, filter)
				}
				tasks, err := store.List(cmd.Context(), filter)
				if err != nil {
					return err
				}
				return a.printTasks(f.output, tasks)
			})
		},
	}
	outputFlag(c, &f.output)
	c.Flags().StringSliceVar(&f.scenes, "scene", nil, "only tasks of this scene; several are allowed")
	c.Flags().StringSliceVar(&f.states, "state", nil, "only tasks in this state ("+stateNames()+"); several are allowed")
	c.Flags().StringVar(&f.key, "key", "", "only tasks with this key")
	c.Flags().StringVar(&f.workflow, "workflow", "", "only tasks of this workflow")
	c.Flags().DurationVar(&f.older, "older-than", 0, "only tasks created at least so long ago, such as 36h")
	c.Flags().DurationVar(&f.newer, "newer-than", 0, "only tasks created at most so long ago, such as 10m")
	c.Flags().IntVar(&f.limit, "limit", 100, "at most so many tasks, 1 to 10000")
	c.Flags().Int64Var(&f.before, "before", 0, "only tasks with an id below this one: the next page")
	c.Flags().BoolVar(&f.count, "count", false, "count tasks by scene, state and reason instead; goes with --scene and --state only")
	return c
}

// filter checks the flags.
func (f *listFlags) filter() (persistence.Filter, error) {
	out := persistence.Filter{Scenes: f.scenes, Key: f.key, Workflow: f.workflow, MinAge: f.older, MaxAge: f.newer, Before: f.before, Limit: f.limit}
	for _, scene := range f.scenes {
		if err := retry.CheckScene(scene); err != nil {
			return out, fmt.Errorf("--scene: %w", err)
		}
	}
	for _, name := range f.states {
		state := retry.Status(strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
		if !state.Valid() {
			return out, usageError("--state: %q is not allowed: must be one of %s%s", name, stateNames(), nearest.Hint(name, strings.Split(stateNames(), ", ")))
		}
		out.Statuses = append(out.Statuses, state)
	}
	switch {
	case f.older < 0:
		return out, usageError("--older-than: %v is not allowed: must be 0s or more", f.older)
	case f.newer < 0:
		return out, usageError("--newer-than: %v is not allowed: must be 0s or more", f.newer)
	case f.limit < 1 || f.limit > 10_000:
		return out, usageError("--limit: %d is not allowed: must be 1 to 10000", f.limit)
	case f.before < 0:
		return out, usageError("--before: %d is not allowed: must be an id", f.before)
	case f.count && (f.key != "" || f.workflow != "" || f.older != 0 || f.newer != 0 || f.before != 0):
		return out, usageError("--count goes with --scene and --state only")
	}
	return out, nil
}

func stateNames() string {
	var names []string
	for _, s := range retry.Statuses() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func (a *app) printCounts(output string, counts []persistence.Count, filter persistence.Filter) error {
	counts = slices.DeleteFunc(counts, func(c persistence.Count) bool {
		return (len(filter.Scenes) > 0 && !slices.Contains(filter.Scenes, c.Scene)) ||
			(len(filter.Statuses) > 0 && !slices.Contains(filter.Statuses, c.Status))
	})
	if counts == nil {
		counts = []persistence.Count{}
	}
	return a.print(output, counts, func(p *printer) {
		var rows [][]string
		var total persistence.Count
		for _, c := range counts {
			rows = append(rows, []string{c.Scene, string(c.Status), string(c.StopReason), strconv.FormatInt(c.Tasks, 10), strconv.FormatInt(c.Attempts, 10)})
			total.Tasks += c.Tasks
			total.Attempts += c.Attempts
		}
		rows = append(rows, []string{"(all)", "", "", strconv.FormatInt(total.Tasks, 10), strconv.FormatInt(total.Attempts, 10)})
		p.rows([]string{"SCENE", "STATE", "REASON", "TASKS", "ATTEMPTS"}, rows)
	})
}

func (a *app) printTasks(output string, tasks []retry.Task) error {
	if tasks == nil {
		tasks = []retry.Task{}
	}
	return a.print(output, tasks, func(p *printer) {
		now := time.Now()
		var rows [][]string
		for _, t := range tasks {
			rows = append(rows, []string{
				strconv.FormatInt(t.ID, 10), t.Scene, clip(t.Key, 40), string(t.Status), strconv.Itoa(t.Attempt), span(now.Sub(t.CreatedAt)), next(t, now), clip(shownError(t), 60),
			})
		}
		p.rows([]string{"ID", "SCENE", "KEY", "STATE", "ATTEMPT", "AGE", "NEXT", "LAST ERROR"}, rows)
	})
}

// next says what will happen to a task, or why it ended. now is this machine's clock and the task's times are the
// database's, so it is a hint.
func next(t retry.Task, now time.Time) string {
	switch t.Status {
	case retry.StatusWait:
		if d := t.NextAt.Sub(now); d > 0 {
			return "in " + span(d)
		}
		return "due since " + span(now.Sub(t.NextAt))
	case retry.StatusInit, retry.StatusExecuting:
		return "runs at " + t.ClaimedBy
	case retry.StatusSuccess, retry.StatusFailed, retry.StatusManualReview, retry.StatusCancelled:
	}
	return string(t.StopReason)
}

// parseIDs reads task ids from the command line.
func parseIDs(args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	for i, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id <= 0 {
			return nil, usageError("task id: %q is not allowed: must be a number above 0, as \"tasks list\" shows it", arg)
		}
		ids[i] = id
	}
	return ids, nil
}

// shownError is the error that explains a task's state; one that was overcome explains nothing.
func shownError(t retry.Task) string {
	if t.Status == retry.StatusSuccess {
		return ""
	}
	return t.LastError
}
