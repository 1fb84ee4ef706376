package main

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/topology"
)

// shownUnchecked bounds how many things that could not be checked are listed: they are much alike.
const shownUnchecked = 3

// topologyTime bounds declare and verify: about 150 round trips to the broker.
const topologyTime = 2 * time.Minute

func (a *app) topologyCommand() *cobra.Command {
	return group("topology", "Show, make or check what the service owns on RabbitMQ",
		a.topologyPlanCommand(), a.topologyDeclareCommand(), a.topologyVerifyCommand(), a.topologyHealCommand())
}

func topologyConfig(s settings.Settings) topology.Config {
	return topology.Config{Service: s.Service, Kind: topology.QueueKind(s.QueueKind)}
}

func (a *app) topologyPlanCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "plan", Short: "Print every exchange, queue and binding; needs no broker", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := settings.Load(varService)
			if err != nil {
				return err
			}
			plan, err := topology.NewPlan(topologyConfig(s))
			if err != nil {
				return err
			}
			return a.print(output, plan, func(p *printer) { p.err = plan.WriteText(p.w) })
		},
	}
	outputFlag(c, &output)
	return c
}

func (a *app) topologyDeclareCommand() *cobra.Command {
	return &cobra.Command{
		Use: "declare", Short: "Make what is missing; changes and deletes nothing", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := settings.Load(varService, varAMQP)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), topologyTime)
			defer cancel()
			cfg := topologyConfig(s)
			return withBroker(ctx, s, "topology", func(conn *amqp.Connection) error {
				if err := topology.Declare(ctx, conn, cfg); err != nil {
					return err
				}
				plan, err := topology.NewPlan(cfg)
				if err != nil {
					return err
				}
				p := &printer{w: a.out}
				p.line("%d exchanges, %d queues and %d bindings of %s are there", len(plan.Exchanges), len(plan.Queues), len(plan.Bindings), s.Service)
				return p.err
			})
		},
	}
}

func (a *app) topologyHealCommand() *cobra.Command {
	return &cobra.Command{
		Use: "heal", Short: "Make queues of wake-ups anew that the broker lists and has lost", Args: cobra.NoArgs,
		Long: "Make queues of wake-ups anew that the broker lists and has lost, as after kill -9 right after their declaration.\n" +
			"Consumers that declare do this by themselves after each reconnect. No task is lost: the scan sends the wake-ups again.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := settings.Load(varService, varAMQP)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), topologyTime)
			defer cancel()
			queues, err := topology.Heal(ctx, func(ctx context.Context) (*amqp.Connection, error) { return dialBroker(ctx, s, "topology") }, topologyConfig(s))
			p := &printer{w: a.out}
			for _, q := range queues {
				p.line("made anew: %s", q)
			}
			if err == nil && len(queues) == 0 {
				p.line("no queue of wake-ups of %s is lost", s.Service)
			}
			return errors.Join(err, p.err)
		},
	}
}

func (a *app) topologyVerifyCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "verify", Short: "Name every difference between what should be and what is, with its fix", Args: cobra.NoArgs,
		Long: "Name every difference between what should be and what is, with its fix. The exit code is 1 if there is one.\n" +
			"With SPILLWAY_MANAGEMENT_URL everything is compared; without it, what AMQP can tell.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := settings.Load(varService, varAMQP)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), topologyTime)
			defer cancel()
			return withBroker(ctx, s, "topology", func(conn *amqp.Connection) error {
				found, err := topology.Verify(ctx, conn, s.ManagementURL, topologyConfig(s))
				if err != nil {
					return err
				}
				if found == nil {
					found = []topology.Difference{}
				}
				differs := 0
				for _, d := range found {
					if d.Severity != topology.Unchecked {
						differs++
					}
				}
				if err := a.print(output, found, func(p *printer) {
					unchecked := found[:0:0]
					for _, d := range found {
						if d.Severity == topology.Unchecked {
							unchecked = append(unchecked, d)
							continue
						}
						p.line("%s", d)
					}
					for _, d := range unchecked[:min(len(unchecked), shownUnchecked)] {
						p.line("%s", d)
					}
					if more := len(unchecked) - shownUnchecked; more > 0 {
						p.line("and %d more could not be checked (--output json names them)", more)
					}
					switch {
					case differs > 0:
					case len(unchecked) > 0:
						p.line("what could be checked of the topology of %s is as planned", s.Service)
					default:
						p.line("the topology of %s is as planned", s.Service)
					}
				}); err != nil {
					return err
				}
				if differs > 0 {
					return said(exitFailed)
				}
				return nil
			})
		},
	}
	outputFlag(c, &output)
	return c
}
