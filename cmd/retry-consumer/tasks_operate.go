package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/mask"
	"github.com/spillway-mq/spillway/internal/nearest"
	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// operated says what became of one task.
type operated struct {
	ID    int64        `json:"id"`
	OK    bool         `json:"ok"`
	State retry.Status `json:"state,omitempty"`
	Error string       `json:"error,omitempty"`
}

func (a *app) operateCommand(verb persistence.Verb, short string) *cobra.Command {
	var output, by, note, phase string
	c := &cobra.Command{
		Use: string(verb) + " ID...", Short: short, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			if by == "" {
				return usageError("--by: say who acts; the journal keeps it ($USER is not set)")
			}
			if phase != "" && !retry.Phase(phase).Valid() {
				return usageError("--phase: %q is not allowed: must be execute, query or callback%s", phase, nearest.Hint(phase, []string{"execute", "query", "callback"}))
			}
			s, err := settings.Load(varService, varDSN)
			if err != nil {
				return err
			}
			return a.withStore(cmd.Context(), s, func(store *persistence.Postgres) error {
				act := persistence.Action{Verb: verb, Actor: by, Note: note, Phase: retry.Phase(phase)}
				results, failed := operate(cmd.Context(), store, act, ids)
				if verb == persistence.Retry {
					a.wake(cmd.Context(), s, store, results)
				}
				if err := a.print(output, results, func(p *printer) {
					for _, r := range results {
						if r.OK {
							p.line("%d: %s", r.ID, r.State)
						} else {
							p.line("%d: not done: %s", r.ID, r.Error)
						}
					}
				}); err != nil {
					return err
				}
				return failed
			})
		},
	}
	outputFlag(c, &output)
	c.Flags().StringVar(&by, "by", currentUser(), "who acts, for the journal")
	c.Flags().StringVar(&note, "note", "", "why, for the journal")
	if verb == persistence.Retry {
		c.Flags().StringVar(&phase, "phase", "", "what you know: execute (it did not take effect), callback (it did; only book it) or query (ask the other side); default: as the task stands")
	}
	return c
}

// operate acts on each task for itself. The error is nil if all went well, and was reported already if only some tasks
// refused.
func operate(ctx context.Context, store persistence.Store, act persistence.Action, ids []int64) ([]operated, error) {
	out := make([]operated, 0, len(ids))
	var failed error
	for _, id := range ids {
		act.ID = id
		t, err := store.Operate(ctx, act)
		r := operated{ID: id, OK: err == nil, State: t.Status}
		if err != nil {
			r.Error = mask.Text(err.Error())
			refused := errors.Is(err, retry.ErrState) || errors.Is(err, retry.ErrNotFound) || errors.Is(err, retry.ErrKeyConflict)
			if failed == nil && refused {
				failed = said(exitFailed)
			}
			if !refused {
				out = append(out, r)
				return out, err // the database; the other tasks would fare no better
			}
		}
		out = append(out, r)
	}
	return out, failed
}

func currentUser() string {
	if name := os.Getenv("USER"); name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

// wakeTime bounds how long a person waits for the broker after the database has done what was asked.
const wakeTime = 5 * time.Second

// wake hurries the tasks along that a person made due. Without it the scan finds them, within about half a minute.
func (a *app) wake(ctx context.Context, s settings.Settings, store persistence.Store, results []operated) {
	var ids []int64
	for _, r := range results {
		if r.OK {
			ids = append(ids, r.ID)
		}
	}
	if len(ids) == 0 || s.AMQPURL == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTime)
	defer cancel()
	if err := a.publishWakes(ctx, s, store, ids); err != nil {
		_, _ = fmt.Fprintf(a.err, "retry-consumer: warning: no wake-up was published, the scan will find the tasks: %s\n", mask.Text(err.Error()))
	}
}
