package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/demo"
	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/topology"
)

// demoWorkerCommand is what the demo starts as a consumer process.
const demoWorkerCommand = "demo-consumer"

func (a *app) demoCommand() *cobra.Command {
	var tasks int
	var limit time.Duration
	c := &cobra.Command{
		Use: "demo", Short: "Run the pipeline for real: a downstream that misbehaves, and a consumer killed midway", Args: cobra.NoArgs,
		Long: "Publish tasks to a downstream that misbehaves, with two consumer processes of which one is killed midway, and check what\n" +
			"was promised. It needs SPILLWAY_POSTGRES_DSN and SPILLWAY_AMQP_URL, and uses the service " + demo.Service + " and the schema\n" +
			demo.Schema + ", which it makes anew each time and leaves for a look.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tasks < 100 || tasks > 100_000 {
				return usageError("--tasks: %d is not allowed: must be 100 to 100000", tasks)
			}
			s, err := settings.Load(varDSN, varAMQP)
			if err != nil {
				return err
			}
			return a.demo(cmd.Context(), s, tasks, limit)
		},
	}
	c.Flags().IntVar(&tasks, "tasks", 2000, "how many tasks")
	c.Flags().DurationVar(&limit, "limit", 100*time.Second, "when all must have ended")
	return c
}

// demoWorker is a consumer process of the demo: started by it, and hidden.
func (a *app) demoWorker() *cobra.Command {
	var name, url string
	c := &cobra.Command{
		Use: demoWorkerCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := settings.Load(varDSN, varAMQP)
			if err != nil {
				return err
			}
			return stoppedInOrder(cmd.Context(), demo.Work(cmd.Context(), demoServers(s), name, url, a.out, a.logger(s)))
		},
	}
	c.Flags().StringVar(&name, "name", "", "")
	c.Flags().StringVar(&url, "downstream", "", "")
	return c
}

func demoServers(s settings.Settings) demo.Servers {
	return demo.Servers{PostgresDSN: s.PostgresDSN, AMQPURL: s.AMQPURL}
}

func (a *app) demo(ctx context.Context, s settings.Settings, tasks int, limit time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r, err := demo.Run(ctx, demo.Config{
		Servers: demoServers(s), Tasks: tasks, Limit: limit, Out: a.out,
		Worker: func(name, url string) *exec.Cmd {
			cmd := exec.Command(self, demoWorkerCommand, "--name", name, "--downstream", url)
			cmd.Env = a.environ
			return cmd
		},
	})
	if err != nil {
		return err
	}
	if err := r.Write(a.out); err != nil {
		return err
	}
	s.Service, s.PostgresSchema = demo.Service, demo.Schema
	p := &printer{w: a.out}
	if r.Trouble != 0 {
		err := a.withStore(ctx, s, func(store *persistence.Postgres) error {
			t, err := store.Get(ctx, r.Trouble)
			if err != nil {
				return err
			}
			events, err := store.Events(ctx, r.Trouble)
			if err != nil {
				return err
			}
			p.line("\nOne that had trouble:")
			writeTask(p, shown(t, events), time.Now())
			return nil
		})
		if err != nil {
			return err
		}
	}
	a.demoWhereToLook(p, s, r.Trouble)
	if broken := r.Broken(); len(broken) > 0 {
		p.line("\nBROKEN: %s", strings.Join(broken, "; "))
		return errors.Join(p.err, said(exitFailed))
	}
	p.line("\nEvery promise held.")
	return p.err
}

func (a *app) demoWhereToLook(p *printer, s settings.Settings, id int64) {
	p.line("\nWhere to look:")
	if u, err := url.Parse(s.ManagementURL); err == nil && u.Host != "" {
		password, _ := u.User.Password()
		p.line("  %s://%s/#/queues   login %s, password %s; the names begin with %s", u.Scheme, u.Host, u.User.Username(), password,
			strings.TrimSuffix(topology.NamesOf(demo.Service).Delay(), ".delay"))
	}
	p.line(`  eval "$(scripts/services env)"; export SPILLWAY_SERVICE=%s SPILLWAY_POSTGRES_SCHEMA=%s`, s.Service, s.PostgresSchema)
	p.line("  bin/retry-consumer tasks list --count")
	p.line("  bin/retry-consumer tasks list --state MANUAL_REVIEW")
	p.line("  bin/retry-consumer tasks show %s", fmt.Sprint(id))
	p.line("  bin/retry-consumer topology verify")
}
