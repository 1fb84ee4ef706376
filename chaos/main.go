// Command chaos runs the pipeline under faults and checks what was promised. See docs/chaos.md.
//
//	run.go         the parent: load, faults, drain, verdict
//	plan.go        which fault comes when, from the seed
//	faults.go      how each is made and healed
//	crew.go        the processes, and who starts them again
//	links.go       the fault proxies between each process and each server
//	servers.go     Postgres and RabbitMQ, through scripts/services
//	downstream.go  the other side: misbehaves by the seed, and keeps the ledger
//	scene*.go      what is run
//	consumer.go    a consumer process
//	publisher.go   a publisher process
//	operator.go    the person
//	audit.go       every change of a task's row, by a trigger
//	check*.go      the promises
//	report.go      the figures, and a violation's timeline
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage: chaos run [--seed N] [--seconds N] [--drain D] [--expect-violation] [--keep] [-v]
       chaos plan --seed N [--seconds N]

run needs SPILLWAY_POSTGRES_DSN and SPILLWAY_AMQP_URL of the servers that scripts/services runs here; it kills them.
Exit codes: 0 every promise held; 1 a violation (with --expect-violation: none); 2 wrong usage; 3 the run itself failed.`

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// errViolated ends a run that found what it should not have found, or the other way round.
var errViolated = errors.New("the verdict is bad")

func command(args []string, out, errOut io.Writer) int {
	if len(args) == 0 {
		args = []string{"help"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch args[0] {
	case "run", "plan":
		err = runCommand(ctx, args, out, errOut)
	case roleConsumer, rolePublisher:
		err = work(ctx, args[0], args[1:], out, errOut)
	default:
		err = flag.ErrHelp
	}
	var bad usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errViolated):
		return 1
	case errors.As(err, &bad), errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprintf(errOut, "%v\n%s\n", err, usage)
		return 2
	}
	_, _ = fmt.Fprintln(errOut, "chaos:", err)
	return 3
}

type usageError struct{ error }

func runCommand(ctx context.Context, args []string, out, errOut io.Writer) error {
	cfg := config{Out: out, PostgresDSN: os.Getenv("SPILLWAY_POSTGRES_DSN"), AMQPURL: os.Getenv("SPILLWAY_AMQP_URL")}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	f.SetOutput(errOut)
	seconds := f.Int("seconds", 60, "how long tasks come and faults strike")
	f.Uint64Var(&cfg.Seed, "seed", 0, "of the faults and of the other side's behaviour; 0 takes a random one")
	f.DurationVar(&cfg.Drain, "drain", 4*time.Minute, "how long the tasks may take to end once the faults have stopped")
	f.BoolVar(&cfg.ExpectViolation, "expect-violation", false, "end at the first violation, and fail if there is none")
	f.BoolVar(&cfg.Keep, "keep", false, "keep the processes' logs also if nothing is wrong")
	f.BoolVar(&cfg.Verbose, "v", false, "print the plan, and each fault as it comes")
	f.StringVar(&cfg.Services, "services", "scripts/services", "the script that runs the servers, and kills them")
	if err := f.Parse(args[1:]); err != nil {
		return usageError{err}
	}
	if *seconds < 10 || *seconds > 24*3600 {
		return usageError{fmt.Errorf("--seconds: %d is not allowed: must be 10 to 86400", *seconds)}
	}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("arguments: %q is not allowed: there are none", f.Args())}
	}
	cfg.Load = time.Duration(*seconds) * time.Second
	for cfg.Seed == 0 {
		cfg.Seed = uint64(rand.Uint32())
	}
	if args[0] == "plan" {
		writePlan(out, newPlan(cfg.Seed, cfg.Load))
		return nil
	}
	if cfg.PostgresDSN == "" || cfg.AMQPURL == "" {
		return usageError{errors.New("SPILLWAY_POSTGRES_DSN and SPILLWAY_AMQP_URL are not set: run make chaos")}
	}
	return run(ctx, cfg)
}

// work runs one of the processes that run starts.
func work(ctx context.Context, role string, args []string, out, errOut io.Writer) error {
	w := worker{PostgresDSN: os.Getenv("SPILLWAY_POSTGRES_DSN"), AMQPURL: os.Getenv("SPILLWAY_AMQP_URL"), out: out}
	f := flag.NewFlagSet(role, flag.ContinueOnError)
	f.StringVar(&w.Name, "name", "", "")
	f.StringVar(&w.Downstream, "downstream", "", "")
	f.Uint64Var(&w.Seed, "seed", 0, "")
	if err := f.Parse(args); err != nil {
		return usageError{err}
	}
	w.log = slog.New(slog.NewTextHandler(errOut, nil)).With("process", w.Name)
	if role == roleConsumer {
		return w.consume(ctx)
	}
	return w.publish(ctx)
}

// wait returns after d, or false once ctx is done.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
