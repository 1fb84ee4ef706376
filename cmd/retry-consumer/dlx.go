package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/dlx"
	"github.com/spillway-mq/spillway/internal/nearest"
	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/topology"
)

func (a *app) dlxCommand() *cobra.Command {
	c := group("dlx", "Look into the parked and unrouted queues, replay or drop their messages",
		a.dlxListCommand(), a.dlxShowCommand(), a.dlxReplayCommand(), a.dlxDropCommand())
	c.Long = c.Short + ".\n\nEach command holds the messages that it passes until it ends, and then gives them back in their order: meanwhile nobody else\n" +
		"sees them. An id is a hash of the whole message; of equal ones, the second is named ID.2, and so on."
	return c
}

// dlxFlags choose messages.
type dlxFlags struct {
	queue string
	all   bool
	dlx.Filter
}

func (f *dlxFlags) add(c *cobra.Command, limit int) {
	c.Flags().StringVar(&f.queue, "queue", "", "only this queue: parked or unrouted; default: both")
	c.Flags().StringVar(&f.MessageID, "message-id", "", "only messages with this message_id of their publisher")
	c.Flags().StringVar(&f.Scene, "scene", "", "only submitted tasks of this scene")
	c.Flags().StringVar(&f.From, "from", "", "only messages that died in this queue, or found no way from this exchange")
	c.Flags().StringVar(&f.Reason, "reason", "", "only messages whose reason contains this text")
	c.Flags().DurationVar(&f.MinAge, "older-than", 0, "only messages that came at least so long ago, such as 36h; not those whose age is not known")
	c.Flags().IntVar(&f.Limit, "limit", limit, "at most so many messages of each queue; 0: no limit")
}

// check checks the flags of a command that acts, which wants to be told what it acts on.
func (f *dlxFlags) check(ids []string, acts bool) ([]dlx.Place, error) {
	f.IDs = ids
	switch {
	case f.MinAge < 0:
		return nil, usageError("--older-than: %v is not allowed: must be 0s or more", f.MinAge)
	case f.Limit < 0:
		return nil, usageError("--limit: %d is not allowed: must be 0 or more", f.Limit)
	case acts && f.all != f.Zero():
		return nil, usageError("say which messages: ids, a filter, or --all alone")
	}
	if f.queue == "" {
		return dlx.Places(), nil
	}
	if place := dlx.Place(f.queue); slices.Contains(dlx.Places(), place) {
		return []dlx.Place{place}, nil
	}
	return nil, usageError("--queue: %q is not allowed: must be parked or unrouted%s", f.queue, nearest.Hint(f.queue, []string{"parked", "unrouted"}))
}

// withBox runs f for each place. With ids, it fails if one was not seen.
func (a *app) withBox(ctx context.Context, places []dlx.Place, ids []string, f func(*dlx.Box, dlx.Place, func(*dlx.Message)) error) error {
	s, err := settings.Load(varService, varAMQP)
	if err != nil {
		return err
	}
	box, err := dlx.New(dlx.Config{Service: s.Service, Dial: func(ctx context.Context) (*amqp.Connection, error) { return dialBroker(ctx, s, "dlx") }})
	if err != nil {
		return err
	}
	missing := slices.Clone(ids)
	seen := func(m *dlx.Message) {
		missing = slices.DeleteFunc(missing, func(id string) bool { return id == m.ID })
	}
	for _, place := range places {
		if err := f(box, place, seen); err != nil {
			if errors.Is(err, topology.ErrMissing) {
				err = fmt.Errorf("%w; fix: run retry-consumer topology declare", err)
			}
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not found, or held by somebody who looks, too: %v", missing)
	}
	return nil
}

// previewLen is how much of a body a list holds, in bytes.
const previewLen = 200

// listed is a message in a list: with a part of its body.
type listed struct {
	dlx.Message
	Body    []byte `json:"body,omitempty"` // hides the whole one
	Preview string `json:"body_preview"`
	Bytes   int    `json:"body_bytes"`
}

func (a *app) dlxListCommand() *cobra.Command {
	var f dlxFlags
	var output string
	c := &cobra.Command{
		Use: "list", Short: "List messages, those at the head of the queue first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			places, err := f.check(nil, false)
			if err != nil {
				return err
			}
			list := []listed{}
			if err := a.withBox(cmd.Context(), places, nil, func(box *dlx.Box, place dlx.Place, _ func(*dlx.Message)) error {
				return box.Look(cmd.Context(), place, f.Filter, func(m *dlx.Message) error {
					l := listed{Message: *m, Preview: bodyPreview(m.Body), Bytes: len(m.Body)}
					l.Message.Body = nil // not to hold it
					list = append(list, l)
					return nil
				})
			}); err != nil {
				return err
			}
			return a.print(output, list, func(p *printer) {
				var rows [][]string
				for _, l := range list {
					rows = append(rows, []string{l.ID, string(l.Place), age(l.Since), clip(l.Reason, 70), fmt.Sprint(l.Bytes), clip(l.Preview, 50)})
				}
				p.rows([]string{"ID", "QUEUE", "AGE", "REASON", "BYTES", "BODY"}, rows)
			})
		},
	}
	outputFlag(c, &output)
	f.add(c, 100)
	return c
}

func bodyPreview(body []byte) string {
	text := string(body[:min(len(body), previewLen)])
	for _, r := range text {
		if r < ' ' && r != '\n' && r != '\t' && r != '\r' {
			return fmt.Sprintf("%q", text)
		}
	}
	return text
}

func age(since time.Time) string {
	if since.IsZero() {
		return "?"
	}
	return span(time.Since(since))
}

func (a *app) dlxShowCommand() *cobra.Command {
	var output, queue string
	c := &cobra.Command{
		Use: "show ID...", Short: "Show messages whole: reason, age, headers, body, and where a replay sends them", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			f := dlxFlags{queue: queue}
			places, err := f.check(ids, false)
			if err != nil {
				return err
			}
			list := []dlx.Message{}
			failed := a.withBox(cmd.Context(), places, ids, func(box *dlx.Box, place dlx.Place, seen func(*dlx.Message)) error {
				return box.Look(cmd.Context(), place, f.Filter, func(m *dlx.Message) error {
					seen(m)
					list = append(list, *m)
					return nil
				})
			})
			if err := a.print(output, list, func(p *printer) {
				for _, m := range list {
					printMessage(p, m)
				}
			}); err != nil {
				return err
			}
			return failed
		},
	}
	outputFlag(c, &output)
	c.Flags().StringVar(&queue, "queue", "", "only this queue: parked or unrouted; default: both")
	return c
}

func printMessage(p *printer, m dlx.Message) {
	p.line("message %s in %s", m.ID, m.Place)
	p.line("  reason       %s", oneLine(m.Reason))
	if !m.Since.IsZero() {
		p.line("  since        %s (%s ago)", stamp(m.Since), span(time.Since(m.Since)))
	}
	p.line("  exchange     %q, key %q", m.Exchange, m.RoutingKey)
	p.line("  message_id   %q", m.MessageID)
	p.line("  content_type %q", m.ContentType)
	if m.Target == nil {
		p.line("  replay       needs --to-queue, or --to-exchange and --to-key")
	} else {
		p.line("  replay       to %s", targetText(*m.Target))
	}
	names := make([]string, 0, len(m.Headers))
	for name := range m.Headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p.line("  header       %s: %s", oneLine(name), oneLine(fmt.Sprint(m.Headers[name])))
	}
	p.line("  body         %d bytes: %q", len(m.Body), m.Body)
}

func targetText(t dlx.Target) string {
	if t.Exchange == "" {
		return "queue " + t.RoutingKey
	}
	return fmt.Sprintf("exchange %s, key %q", t.Exchange, t.RoutingKey)
}

// moved says what became of a message.
type moved struct {
	ID    string      `json:"id"`
	Place dlx.Place   `json:"place"`
	To    *dlx.Target `json:"to,omitempty"`
}

func (a *app) dlxReplayCommand() *cobra.Command {
	var f dlxFlags
	var output, toExchange, toKey, toQueue string
	var rate float64
	c := &cobra.Command{
		Use: "replay [ID...]", Short: "Publish messages where they came from, confirmed, and only then remove them",
		Long: "Publish messages where they came from, confirmed, and only then remove them: a crash doubles a message rather than losing it.\n" +
			"Submitted tasks go to the submit exchange, wake-ups to the ready queue; others need a target. At the first message that is not taken it\n" +
			"ends, and that one and all behind it stay. Those that come back meanwhile are not replayed again.",
		RunE: func(cmd *cobra.Command, ids []string) error {
			places, err := f.check(ids, true)
			if err == nil {
				err = checkOutput(output) // print would tell too late
			}
			if err != nil {
				return err
			}
			r := dlx.Replay{Filter: f.Filter, Rate: rate}
			switch exchange, key := cmd.Flags().Changed("to-exchange"), cmd.Flags().Changed("to-key"); {
			case toQueue != "" && (exchange || key):
				return usageError("--to-queue goes without --to-exchange and --to-key")
			case toQueue != "":
				r.To = &dlx.Target{RoutingKey: toQueue}
			case exchange && toExchange == "", key && !exchange:
				return usageError("--to-exchange: name an exchange (and --to-key, unless its key is empty), or use --to-queue")
			case exchange:
				r.To = &dlx.Target{Exchange: toExchange, RoutingKey: toKey}
			}
			if !(rate >= 0 && rate <= dlx.MaxRate) {
				return usageError("--rate: %v is not allowed: must be 0 to %d", rate, dlx.MaxRate)
			}
			list := []moved{}
			failed := a.withBox(cmd.Context(), places, ids, func(box *dlx.Box, place dlx.Place, seen func(*dlx.Message)) error {
				return box.Replay(cmd.Context(), place, r, func(m *dlx.Message, to dlx.Target) {
					seen(m)
					list = append(list, moved{m.ID, place, &to})
				})
			})
			return errors.Join(a.print(output, list, func(p *printer) {
				for _, m := range list {
					p.line("%s: to %s", m.ID, targetText(*m.To))
				}
				p.line("%d replayed", len(list))
			}), failed)
		},
	}
	outputFlag(c, &output)
	f.add(c, 0)
	c.Flags().BoolVar(&f.all, "all", false, "all messages of the queue, or of both")
	c.Flags().Float64Var(&rate, "rate", 100, "messages a second; 0: as fast as confirms come")
	c.Flags().StringVar(&toQueue, "to-queue", "", "straight to this queue instead")
	c.Flags().StringVar(&toExchange, "to-exchange", "", "to this exchange instead")
	c.Flags().StringVar(&toKey, "to-key", "", "with this routing key; goes with --to-exchange")
	return c
}

func (a *app) dlxDropCommand() *cobra.Command {
	var f dlxFlags
	var output string
	var yes bool
	c := &cobra.Command{
		Use: "drop [ID...] --yes", Short: "Delete messages for ever",
		RunE: func(cmd *cobra.Command, ids []string) error {
			places, err := f.check(ids, true)
			if err == nil {
				err = checkOutput(output) // print would tell too late
			}
			if err != nil {
				return err
			}
			if !yes {
				return usageError("what is dropped is gone for ever: look with dlx list, and say --yes")
			}
			list := []moved{}
			failed := a.withBox(cmd.Context(), places, ids, func(box *dlx.Box, place dlx.Place, seen func(*dlx.Message)) error {
				return box.Drop(cmd.Context(), place, f.Filter, func(m *dlx.Message) {
					seen(m)
					list = append(list, moved{ID: m.ID, Place: place})
				})
			})
			return errors.Join(a.print(output, list, func(p *printer) {
				for _, m := range list {
					p.line("%s: dropped", m.ID)
				}
				p.line("%d dropped", len(list))
			}), failed)
		},
	}
	outputFlag(c, &output)
	f.add(c, 0)
	c.Flags().BoolVar(&f.all, "all", false, "all messages of the queue, or of both")
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	return c
}
