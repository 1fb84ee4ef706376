package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
)

const (
	typeJSON  = "application/json"
	typeBytes = "application/octet-stream"
)

type publishFlags struct {
	output, scenes, scene, key, data, workflow, contentType string
	delay, deadline                                         time.Duration
	headers                                                 []string
}

// published is what publish prints.
type published struct {
	ID      int64        `json:"id"`
	State   retry.Status `json:"state"`
	Created bool         `json:"created"`
	// Submitted says that postgres was away and the task is in the submit queue.
	Submitted bool `json:"submitted,omitempty"`
}

func (a *app) publishCommand() *cobra.Command {
	var f publishFlags
	c := &cobra.Command{
		Use: "publish --scene SCENE [--data DATA]", Short: "Hand a task over to the service's consumers", Args: cobra.NoArgs,
		Long: "Hand a task over to the service's consumers, and print its id and state once it is recorded.\n" +
			"The same key with the same data is the same task: repeating the command is harmless. The same key with other data is\n" +
			"refused. Without --key nothing is deduplicated.",
		Example: `  retry-consumer publish --scene mail.send --key order-7 --data '{"to":"a@example.com"}'
  retry-consumer publish --scene image.resize --content-type application/octet-stream --data @picture.jpg
  jq -c .order order.json | retry-consumer publish --scene invoice.print --data -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			task, err := f.task(a.in)
			if err != nil {
				return err
			}
			var scenes []retry.Scene
			if f.scenes != "" {
				file, err := loadScenes(f.scenes)
				if err != nil {
					return err
				}
				for _, s := range file.Scenes {
					scenes = append(scenes, s.Scene)
				}
			}
			s, err := settings.Load(varService, varDSN, varAMQP)
			if err != nil {
				return err
			}
			store, err := openStore(s, a.logger(s))
			if err != nil {
				return err
			}
			defer func() { _ = store.Close() }()
			// A server that is away is no reason to give up: the submit queue takes the task.
			if err := checkStore(cmd.Context(), store); err != nil && (!isUnreachable(err) || cmd.Context().Err() != nil) {
				return err
			}
			return a.publish(cmd.Context(), s, store, f.output, task, scenes)
		},
	}
	outputFlag(c, &f.output)
	c.Flags().StringVar(&f.scene, "scene", "", "kind of task; required")
	c.Flags().StringVar(&f.scenes, "scenes", "", "the scenes file of serve, for the scene's own deadline; other scenes are refused then")
	c.Flags().StringVar(&f.key, "key", "", "idempotency key, unique within the scene")
	c.Flags().StringVar(&f.data, "data", "null", "the arguments: @FILE, - for stdin, or the text itself")
	c.Flags().StringVar(&f.contentType, "content-type", typeJSON, "what the arguments are: "+typeJSON+" (checked) or "+typeBytes)
	c.Flags().DurationVar(&f.delay, "delay", 0, "until the first attempt, such as 90s")
	c.Flags().DurationVar(&f.deadline, "deadline", 0, "after which no attempt begins, counted from now; 0s: the delay and the policy's, which is 7 days without --scenes")
	c.Flags().StringVar(&f.workflow, "workflow", "", "workflow whose deadline the task shares")
	c.Flags().StringArrayVar(&f.headers, "header", nil, "name=value for the handler; several are allowed")
	return c
}

// task reads the flags and the data.
func (f *publishFlags) task(in io.Reader) (publisher.Task, error) {
	t := publisher.Task{Scene: f.scene, Key: f.key, Delay: f.delay, Deadline: f.deadline, Workflow: f.workflow, Headers: map[string]string{}}
	if f.scene == "" {
		return t, usageError("--scene: say which kind of task this is")
	}
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return t, usageError("--header: %q is not allowed: must be name=value", h)
		}
		t.Headers[name] = value
	}
	data, err := readData(f.data, in)
	if err != nil {
		return t, &exitError{code: exitUsage, err: fmt.Errorf("--data: %w", err)}
	}
	switch f.contentType {
	case typeJSON:
		if !json.Valid(data) {
			return t, usageError("--data: this is no JSON: quote text, or say --content-type " + typeBytes)
		}
		t.Args = json.RawMessage(data)
	case typeBytes:
		t.Args = data
	default:
		return t, usageError("--content-type: %q is not allowed: must be %s or %s", f.contentType, typeJSON, typeBytes)
	}
	return t, nil
}

// readData reads @FILE, stdin for "-", or takes the text itself.
func readData(data string, in io.Reader) ([]byte, error) {
	if data == "-" {
		return io.ReadAll(in)
	}
	if name, ok := strings.CutPrefix(data, "@"); ok {
		return os.ReadFile(name)
	}
	return []byte(data), nil
}

func (a *app) newPublisher(s settings.Settings, store persistence.Store, scenes []retry.Scene) (*publisher.Publisher, error) {
	s.LogLevel = max(s.LogLevel, slog.LevelWarn) // a person waits at a prompt: what goes well is not worth a line
	return publisher.New(publisher.Config{Service: s.Service, Store: store, AMQPURL: s.AMQPURL, Scenes: scenes, MaxPayload: s.MaxPayload, Logger: a.logger(s)})
}

// closePublisher gives the wake-ups a moment. What does not get out in time is the scan's.
func (a *app) closePublisher(p *publisher.Publisher) error {
	ctx, cancel := context.WithTimeout(context.Background(), wakeTime)
	defer cancel()
	return p.Close(ctx)
}

func (a *app) publish(ctx context.Context, s settings.Settings, store persistence.Store, output string, task publisher.Task, scenes []retry.Scene) error {
	p, err := a.newPublisher(s, store, scenes)
	if err != nil {
		return err
	}
	result, err := p.Enqueue(ctx, task)
	if closeErr := a.closePublisher(p); closeErr != nil && err == nil {
		_, _ = fmt.Fprintf(a.err, "retry-consumer: warning: the task is recorded, but its wake-up was not published in time; the scan will find it: %v\n", closeErr)
	}
	switch {
	case errors.Is(err, retry.ErrNotRecorded): // postgres was away, and the submit queue did not help
		return &exitError{code: exitUnreachable, err: fmt.Errorf("%w (%s)", err, varDSN)}
	case err != nil && !errors.Is(err, retry.ErrKeyConflict):
		return err
	}
	if err != nil {
		return &exitError{code: exitFailed, err: err}
	}
	out := published{ID: result.ID, State: result.Status, Created: result.Created, Submitted: result.Submitted}
	return a.print(output, out, func(p *printer) {
		switch {
		case out.Submitted:
			p.line("postgres is away: the task is in the submit queue, from which a consumer stores it")
		case out.Created:
			p.line("task %d: %s", out.ID, out.State)
		default:
			p.line("task %d: %s (it was there before)", out.ID, out.State)
		}
	})
}

// publishWakes publishes the wake-ups of waiting tasks.
func (a *app) publishWakes(ctx context.Context, s settings.Settings, store persistence.Store, ids []int64) error {
	p, err := a.newPublisher(s, store, nil)
	if err != nil {
		return err
	}
	err = p.Wake(ctx, ids...)
	return errors.Join(err, a.closePublisher(p))
}
