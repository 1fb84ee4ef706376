package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// Report is what a demo found.
type Report struct {
	Took      time.Duration
	Tasks     int
	Local     int // ended well in the local tier
	Permanent int // ended in the local tier, by a permanent error
	Counts    []persistence.Count
	Attempts  int64 // durable ones
	// How late attempts began, sorted: first attempts, retries, and those whose
	// wake-up was lost (with the killed consumer, mostly), so that a scan found them.
	First, Retries, Scanned []time.Duration
	Crashed                 int // claims that the reaper ended
	LostClaims              int

	Lost     []string // accepted and not ended
	Twice    []string // called more than once under one claim
	NoEffect []string // called a success without an effect
	Strays   int      // messages in parked and unrouted

	// Trouble is the task with the most eventful life.
	Trouble int64
}

// Broken lists the promises that were broken.
func (r *Report) Broken() []string {
	var out []string
	say := func(n int, what string) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, what))
		}
	}
	say(len(r.Lost), "tasks were lost")
	say(len(r.Twice), "tasks were executed twice without a lease change")
	say(len(r.NoEffect), "tasks are called a success and had no effect")
	say(r.Strays, "messages went astray")
	return out
}

func report(ctx context.Context, store *persistence.Postgres, cfg Config, down *downstream, crew *crew, fates *fates, took time.Duration) (*Report, error) {
	r := &Report{Took: took, Tasks: cfg.Tasks}
	var err error
	if r.Counts, err = store.Count(ctx); err != nil {
		return nil, err
	}
	for _, c := range r.Counts {
		r.Attempts += c.Attempts
	}
	rows := map[int64]retry.Task{}
	for before := int64(0); ; {
		page, err := store.List(ctx, persistence.Filter{Before: before, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, t := range page {
			rows[t.ID] = t
			before = t.ID
			r.Crashed += t.Crashes
		}
		if len(page) < 1000 {
			break
		}
	}
	down.mu.Lock()
	defer down.mu.Unlock()
	if missing := cfg.Tasks - len(fates.by); missing > 0 {
		r.Lost = append(r.Lost, fmt.Sprintf("%d tasks that the publisher did not account for", missing))
	}
	best := -1
	for key, f := range fates.by {
		e := down.ledger[key]
		effects := e != nil && e.effects == 1
		switch {
		case f.local:
			if r.Local++; !effects {
				r.NoEffect = append(r.NoEffect, key)
			}
		case f.permanent:
			r.Permanent++
		default:
			t, ok := rows[f.id]
			if !ok || !(t.Status.Terminal() || t.Status == retry.StatusManualReview) {
				r.Lost = append(r.Lost, key)
			}
			if ok && t.Status == retry.StatusSuccess && !effects {
				r.NoEffect = append(r.NoEffect, key)
			}
			if score := t.Attempt + 5*t.Crashes; t.Status == retry.StatusSuccess && (score > best || score == best && t.ID < r.Trouble) {
				best, r.Trouble = score, t.ID
			}
		}
		if e == nil {
			continue
		}
		for _, n := range e.runs {
			if n > 1 {
				r.Twice = append(r.Twice, key)
			}
		}
	}
	slices.Sort(r.Lost)
	slices.Sort(r.Twice)
	crew.mu.Lock()
	defer crew.mu.Unlock()
	for _, e := range crew.events {
		late := time.Duration(e.LateUS) * time.Microsecond
		switch {
		case e.Kind == consumer.EventLostClaim:
			r.LostClaims++
		case late >= persistence.DispatchGap:
			r.Scanned = append(r.Scanned, late)
		case e.Attempt > 1:
			r.Retries = append(r.Retries, late)
		default:
			r.First = append(r.First, late)
		}
	}
	for _, d := range [][]time.Duration{r.First, r.Retries, r.Scanned} {
		slices.Sort(d)
	}
	r.Strays, err = strays(ctx, cfg.AMQPURL)
	return r, err
}

func strays(ctx context.Context, url string) (int, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return 0, fmt.Errorf("reach rabbitmq: %w", err)
	}
	defer func() { _ = conn.Close() }()
	names, n := topology.NamesOf(Service), 0
	for _, q := range []string{names.Parked(), names.Unrouted()} {
		depth, err := topology.Depth(ctx, conn, q)
		if err != nil {
			return 0, err
		}
		n += depth
	}
	return n, nil
}

// quantile of sorted durations.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

// Write prints the table.
func (r *Report) Write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				_, _ = fmt.Fprint(t, "\t")
			}
			_, _ = fmt.Fprint(t, c)
		}
		_, _ = fmt.Fprintln(t)
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
	row("\nRESULT", "STATE", "REASON", "TASKS")
	row("local tier", "done at once or after a pause", "", r.Local)
	row("local tier", "refused for good", "", r.Permanent)
	by := map[[2]string]int64{}
	var keys [][2]string
	for _, c := range r.Counts {
		k := [2]string{string(c.Status), string(c.StopReason)}
		if _, ok := by[k]; !ok {
			keys = append(keys, k)
		}
		by[k] += c.Tasks
	}
	slices.SortFunc(keys, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		row("durable tier", k[0], k[1], by[k])
	}
	row("in all", "", "", r.Tasks)
	row("")
	row("durable attempts", r.Attempts)
	row("claims of the killed consumer that ran out", r.Crashed)
	row("lateness of retries", fmt.Sprintf("p50 %s, p99 %s (%d)", ms(quantile(r.Retries, .5)), ms(quantile(r.Retries, .99)), len(r.Retries)))
	row("lateness of first attempts, published all at once", fmt.Sprintf("p50 %s, p99 %s (%d)", ms(quantile(r.First, .5)), ms(quantile(r.First, .99)), len(r.First)))
	row("wake-ups lost with the killed consumer, found by the scan", fmt.Sprintf("%d, at most %s late", len(r.Scanned), ms(quantile(r.Scanned, 1))))
	row("results that came too late and were refused", r.LostClaims)
	row("lost", len(r.Lost))
	row("executed twice without a lease change", len(r.Twice))
	row("success without an effect", len(r.NoEffect))
	row("messages parked or unrouted", r.Strays)
	row("took", r.Took.Round(100*time.Millisecond))
	return t.Flush()
}
