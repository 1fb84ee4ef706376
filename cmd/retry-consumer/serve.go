package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/serve"
	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

type serveFlags struct {
	scenes                  string
	migrate, declare, check bool
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use: "serve --scenes FILE", Short: "Run the tasks of the scenes in a file, by HTTP or by commands", Args: cobra.NoArgs,
		Long: "Run the tasks of the scenes in a file until SIGTERM or SIGINT: then what runs may finish (SPILLWAY_GRACE) and the rest is\n" +
			"handed back. A second signal ends it at once.\n\n" + scenesHelp,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.scenes == "" {
				return usageError("--scenes: name the file that says what to run")
			}
			file, err := loadScenes(f.scenes)
			if err != nil {
				return err
			}
			if f.check {
				p := &printer{w: a.out}
				p.line("%s: %d scenes, nothing wrong", file.Path, len(file.Scenes))
				return p.err
			}
			s, err := settings.Load(varService, varDSN, varAMQP)
			if err != nil {
				return err
			}
			return a.serve(cmd.Context(), s, file, f)
		},
	}
	c.Flags().StringVar(&f.scenes, "scenes", "", "the scenes file; required")
	c.Flags().BoolVar(&f.migrate, "migrate", false, "bring the database schema to this build's version first")
	c.Flags().BoolVar(&f.declare, "declare", true, "make what is missing of the topology on RabbitMQ")
	c.Flags().BoolVar(&f.check, "check", false, "only say whether the file is right; needs no servers and no settings")
	return c
}

// loadScenes reads a scenes file.
func loadScenes(name string) (*serve.File, error) {
	file, err := serve.Load(name, os.LookupEnv)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil, &exitError{code: exitUsage, err: err}
	}
	return file, err
}

const scenesHelp = `The scenes file, in YAML:

  allow_hosts: [billing.internal]   # hosts other than this machine that http handlers may call
  scenes:
    - name: payment.refund
      unknown: repeat               # an outcome that nobody knows: review (default; a person), repeat (safe) or ask (query first)
      timeout: 30s                  # of one call; default 1m; 0s: none
      concurrency: 8                # at once in one process
      max_crashes: 3                # ends without a word before a person looks
      policy: {kind: EXPONENTIAL, base: 1s, cap: 10m, max_attempts: 8, deadline: 24h}   # or FIXED, LINEAR, delays: [1s, 10s]
      handler:
        http: {url: "http://127.0.0.1:8080/refund", headers: {Authorization: "Bearer ${REFUND_TOKEN}"}}
    - name: mail.send
      handler:
        exec: {command: [./send.py], env: {LANG: C.UTF-8}}
      exit_codes: {65: permanent}   # 0 is success and 75 transient
    - name: stock.reserve
      unknown: ask                  # before an unknown outcome is redone, query asks the other side
      handler:  {http: {url: "http://127.0.0.1:8080/reserve"}}
      query:    {http: {url: "http://127.0.0.1:8080/reserved"}}      # took_effect, no_effect, pending or cannot_tell
      check:    {exec: {command: [./booked.sh]}}                     # optional: not_started, in_flight or done
      callback: {exec: {command: [./book.sh]}}                       # optional: books a success, retried alone
      query_policy: {kind: FIXED, base: 10s, max_attempts: 30}       # and callback_policy: their own budgets

check and query answer with the word alone, or as {"answer": "pending"}: in the body of a 2xx, or on stdout with exit code 0.
Each handler may be http or exec. Spillway-Handler (SPILLWAY_HANDLER) says which of the four is called.

http: the arguments by POST with Content-Type, Idempotency-Key (service/scene/key), Spillway-Task-Id, Spillway-Scene,
Spillway-Key, Spillway-Attempt, Spillway-Unknown and Spillway-Deadline. 2xx is success; 429, 503 and the like are tried
again, after Retry-After; other 4xx are permanent; 500, 502 and 504 are unknown unless repeating is safe.
exec: the arguments on stdin and SPILLWAY_IDEMPOTENCY_KEY, SPILLWAY_TASK_ID, SPILLWAY_SCENE, SPILLWAY_KEY, SPILLWAY_ATTEMPT,
SPILLWAY_UNKNOWN, SPILLWAY_HEADERS and SPILLWAY_DEADLINE in the environment. The end of stderr is the error's text.`

func (a *app) serve(ctx context.Context, s settings.Settings, file *serve.File, f serveFlags) error {
	log := a.logger(s)
	store, err := openStore(s, log)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	cfg := consumer.Config{
		Service: s.Service, Store: store, AMQPURL: s.AMQPURL, Kind: topology.QueueKind(s.QueueKind), Declare: f.declare,
		Concurrency: s.Concurrency, Lease: s.Lease, Grace: s.Grace, Name: s.ConsumerName, ScanInterval: s.ScanInterval, Retention: s.Retention,
		MaxPayload: s.MaxPayload, Logger: log,
	}
	if s.Grace == 0 {
		cfg.Grace = -1 // the consumer's way to say none
	}
	handlers, closeIdle := file.Handlers(serve.Options{Environ: a.environ, Stdout: a.out, Stderr: a.err})
	defer closeIdle()
	c, err := consumer.New(cfg, consumerHandlers(handlers)...)
	if err != nil {
		return err
	}
	if err := a.waitForServers(ctx, s, store, f.migrate, log); err != nil {
		return stoppedInOrder(ctx, err)
	}
	log.Info("serving", "service", s.Service, "scenes", sceneList(handlers), "file", file.Path, "concurrency", s.Concurrency, "version", buildVersion())
	return stoppedInOrder(ctx, c.Run(ctx))
}

// stoppedInOrder: a signal is how serve is meant to end.
func stoppedInOrder(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// waitForServers returns once both servers answer and the schema fits.
func (a *app) waitForServers(ctx context.Context, s settings.Settings, store *persistence.Postgres, migrate bool, log *slog.Logger) error {
	w := waiter{limit: s.StartTimeout, log: log}
	if err := w.wait(ctx, "postgres", func(ctx context.Context) error { return ping(ctx, store) }); err != nil {
		return err
	}
	if migrate {
		if err := migrateUp(ctx, s, log); err != nil {
			return err
		}
	}
	if err := store.CheckSchema(ctx); err != nil {
		return err
	}
	return w.wait(ctx, "rabbitmq", func(ctx context.Context) error {
		return withBroker(ctx, s, "start check", func(*amqp.Connection) error { return nil })
	})
}

func migrateUp(ctx context.Context, s settings.Settings, log *slog.Logger) error {
	m, err := persistence.NewMigrator(s.PostgresDSN, s.PostgresSchema, log)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	done, err := m.Up(ctx)
	if err != nil {
		return fmt.Errorf("%w (%s)", err, varDSN)
	}
	for _, d := range done {
		log.Info("migrated", "schema", s.PostgresSchema, "applied", d.Name)
	}
	return nil
}

func consumerHandlers(handlers []serve.Handler) []consumer.Handler {
	out := make([]consumer.Handler, len(handlers))
	for i, h := range handlers {
		steps := consumer.Steps[[]byte]{
			Execute: func(ctx context.Context, job *consumer.Job[[]byte]) error { return h.Run(ctx, callOf(job)) },
		}
		if h.Check != nil {
			steps.Check = func(ctx context.Context, job *consumer.Job[[]byte]) (retry.Progress, error) {
				word, err := h.Check(ctx, callOf(job))
				return retry.Progress(word), err
			}
		}
		if h.Query != nil {
			steps.Query = func(ctx context.Context, job *consumer.Job[[]byte]) (retry.Answer, error) {
				word, err := h.Query(ctx, callOf(job))
				return retry.Answer(word), err
			}
		}
		if h.Callback != nil {
			steps.Callback = func(ctx context.Context, job *consumer.Job[[]byte]) error { return h.Callback(ctx, callOf(job)) }
		}
		out[i] = consumer.HandleSteps(h.Scene, steps)
	}
	return out
}

func callOf(job *consumer.Job[[]byte]) serve.Call {
	return serve.Call{Task: job.Task, Attempt: job.Attempt, Deadline: job.Deadline, Key: job.IdempotencyKey()}
}

func sceneList(handlers []serve.Handler) string {
	list := make([]string, len(handlers))
	for i, h := range handlers {
		list[i] = h.Scene.Name + " (" + h.Target + ")"
	}
	return strings.Join(list, ", ")
}
