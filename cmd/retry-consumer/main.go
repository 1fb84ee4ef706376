// Command retry-consumer runs Spillway's pipeline for a service and lets an operator look after it. It only wires the
// packages together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/mask"
	"github.com/spillway-mq/spillway/internal/settings"
)

func main() {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ()}
	os.Exit(a.main(os.Args[1:]))
}

// app is what the commands share: the process around them.
type app struct {
	in       io.Reader
	out, err io.Writer
	environ  []string
}

// sameSignal is how close together two signals count as one: timeout(1) and wrappers that pass signals on reach a process
// twice, through its group and by its id.
const sameSignal = 300 * time.Millisecond

// main runs a command line and returns the exit code. The first SIGINT or SIGTERM ends the context; a second one ends
// the process at once.
func (a *app) main(args []string) int {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	done := make(chan struct{})
	defer close(done)
	go func() { // ends with main
		var first time.Time
		for {
			select {
			case sig := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					stop(&stoppedError{sig: sig})
				case time.Since(first) > sameSignal:
					_, _ = fmt.Fprintf(a.err, "retry-consumer: %v again: exiting at once\n", sig)
					os.Exit(signalCode(sig))
				}
			case <-done:
				return
			}
		}
	}()
	return a.run(ctx, args)
}

// run is main without signals.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	for _, u := range settings.FindUnknown(a.environ) {
		hint := ""
		if u.Meant != "" {
			hint = fmt.Sprintf(" (did you mean %s?)", u.Meant)
		}
		_, _ = fmt.Fprintf(a.err, "retry-consumer: warning: %s is no setting%s\n", u.Name, hint)
	}
	err := root.ExecuteContext(ctx)
	var stopped *stoppedError
	if err != nil && errors.As(context.Cause(ctx), &stopped) && errors.Is(err, context.Canceled) {
		// Whatever the command was at, this is why it did not end.
		err = stopped
	}
	if err != nil && !isSilent(err) {
		text := err.Error()
		// The settings mask their values themselves, and show what an address with a password looks like.
		if bad := (*settings.Error)(nil); !errors.As(err, &bad) {
			text = mask.Text(text)
		}
		_, _ = fmt.Fprintf(a.err, "retry-consumer: %s\n", text)
	}
	return codeOf(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "retry-consumer",
		Short:         "Run and look after the durable retry pipeline of a service",
		Long:          "Run and look after the durable retry pipeline of a service.\n\n" + settingsHelp + "\n\n" + exitHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usageError("name a command")
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{code: exitUsage, err: err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		a.versionCommand(), a.configCommand(), a.migrateCommand(), a.topologyCommand(), a.serveCommand(), a.publishCommand(), a.tasksCommand(), a.explainCommand(), a.dlxCommand(),
		a.demoCommand(), a.demoWorker(),
	)
	usageErrors(root)
	return root
}

const settingsHelp = `Settings come from environment variables with the prefix SPILLWAY_, such as SPILLWAY_SERVICE, SPILLWAY_POSTGRES_DSN
and SPILLWAY_AMQP_URL: "retry-consumer config" lists them all.`

// usageErrors makes what cobra says about arguments and commands a usage error, in root and all below it.
func usageErrors(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &exitError{code: exitUsage, err: fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		usageErrors(sub)
	}
}

// group is a command that only holds others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usageError("name a command")
		},
	}
	c.AddCommand(subs...)
	return c
}
