package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spillway-mq/spillway/internal/mask"
)

const (
	firstPause = 250 * time.Millisecond
	maxPause   = 5 * time.Second
	// tryTime bounds one try, so that a server that is silent counts as one that is away.
	tryTime = reachTime
)

// waiter waits for servers at start and says so.
type waiter struct {
	limit time.Duration // for all servers together; 0: for ever
	log   *slog.Logger
	since time.Time
}

// wait tries until the server answers, the limit is over or the context ends. It gives up at once where the server is there and
// refuses the login: that does not mend itself. The errors of try name the setting.
func (w *waiter) wait(ctx context.Context, server string, try func(context.Context) error) error {
	if w.since.IsZero() {
		w.since = time.Now()
	}
	limited := ctx
	if w.limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithDeadline(ctx, w.since.Add(w.limit))
		defer cancel()
	}
	pause := firstPause
	for n := 1; ; n++ {
		tryCtx, cancel := context.WithTimeout(limited, tryTime)
		err := try(tryCtx)
		cancel()
		if err == nil {
			if n > 1 {
				w.log.Info(server+" answers", "after", time.Since(w.since).Round(time.Millisecond))
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if isRefusedLogin(err) {
			return err
		}
		if limited.Err() == nil {
			limit := "for ever"
			if w.limit > 0 {
				limit = "until " + span(w.limit) + " are over"
			}
			w.log.Warn("waiting for "+server, "try", n, "next", pause, "waits", limit, "error", mask.Text(err.Error()))
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-limited.Done():
				timer.Stop()
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if limited.Err() != nil {
			return &exitError{code: exitUnreachable, err: fmt.Errorf("%s did not answer within %s (SPILLWAY_START_TIMEOUT): %w", server, span(w.limit), err)}
		}
		pause = min(2*pause, maxPause)
	}
}
