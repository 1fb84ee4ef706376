package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
)

func (a *app) migrateCommand() *cobra.Command {
	return group("migrate", "Make, update, show or remove the database schema",
		a.migrateUpCommand(), a.migrateDownCommand(), a.migrateStatusCommand(), a.migratePrintCommand())
}

func (a *app) withMigrator(ctx context.Context, f func(context.Context, *persistence.Migrator, settings.Settings) error) error {
	s, err := settings.Load(varDSN)
	if err != nil {
		return err
	}
	// The migration library reports each step; the command does too, so only what goes wrong is logged.
	log := slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: max(s.LogLevel, slog.LevelWarn)}))
	m, err := persistence.NewMigrator(s.PostgresDSN, s.PostgresSchema, log)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	if err := f(ctx, m, s); err != nil {
		return fmt.Errorf("%w (%s)", err, varDSN)
	}
	return nil
}

func (a *app) migrateUpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Bring the schema to this build's version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withMigrator(cmd.Context(), func(ctx context.Context, m *persistence.Migrator, s settings.Settings) error {
				done, err := m.Up(ctx)
				if err != nil {
					return err
				}
				p := &printer{w: a.out}
				for _, d := range done {
					p.line("applied %s", d.Name)
				}
				p.line("schema %s is at version %d", s.PostgresSchema, persistence.SchemaVersion)
				return p.err
			})
		},
	}
}

func (a *app) migrateDownCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "down --yes", Short: "Take the newest version of the schema back, with the tasks in what it drops", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return usageError("down drops tables and the tasks in them: say --yes if that is what you want")
			}
			return a.withMigrator(cmd.Context(), func(ctx context.Context, m *persistence.Migrator, s settings.Settings) error {
				done, err := m.Down(ctx)
				if err != nil {
					return err
				}
				p := &printer{w: a.out}
				for _, d := range done {
					p.line("took back %s", d.Name)
				}
				if len(done) == 0 {
					p.line("schema %s: nothing to take back", s.PostgresSchema)
				}
				return p.err
			})
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do it; tasks are lost")
	return c
}

func (a *app) migrateStatusCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "status", Short: "List the versions of the schema and which are applied", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withMigrator(cmd.Context(), func(ctx context.Context, m *persistence.Migrator, _ settings.Settings) error {
				ctx, cancel := context.WithTimeout(ctx, reachTime)
				defer cancel()
				list, err := m.Status(ctx)
				if err != nil {
					return err
				}
				return a.print(output, list, func(p *printer) {
					var rows [][]string
					for _, v := range list {
						at := "pending"
						if v.Applied {
							at = v.AppliedAt.UTC().Format(time.DateTime + "Z")
						}
						rows = append(rows, []string{fmt.Sprint(v.Version), v.Name, at})
					}
					p.rows([]string{"VERSION", "NAME", "APPLIED"}, rows)
				})
			})
		},
	}
	outputFlag(c, &output)
	return c
}

func (a *app) migratePrintCommand() *cobra.Command {
	var down bool
	c := &cobra.Command{
		Use: "print", Short: "Print the schema as SQL, for teams with a migration tool of their own", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := settings.Load()
			if err != nil {
				return err
			}
			return persistence.PrintMigrations(a.out, s.PostgresSchema, down)
		},
	}
	c.Flags().BoolVar(&down, "down", false, "print how to remove it instead")
	return c
}
