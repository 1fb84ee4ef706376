package persistence

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"testing/fstest"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/spillway-mq/spillway/retry"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// SchemaVersion is the schema that this build was made for.
const SchemaVersion = 3

// versionTable is where goose notes what was applied, inside the schema.
const versionTable = "schema_version"

// How long a Migrator waits while another works, and how often it looks.
const (
	lockWait  = 10 * time.Minute
	lockPause = 200 * time.Millisecond
)

// Migrator moves a schema from version to version. Several may run at once: a
// lock row lets one work at a time.
type Migrator struct {
	db       *sqlx.DB
	schema   string
	provider *goose.Provider
}

// Migration is a version of the schema.
type Migration struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// NewMigrator returns a Migrator of a schema (empty: DefaultSchema). It does not
// connect. Close it.
func NewMigrator(dsn, schema string, log *slog.Logger) (*Migrator, error) {
	if schema == "" {
		schema = DefaultSchema
	}
	if err := CheckSchemaName(schema); err != nil {
		return nil, err
	}
	files, err := migrations(schema)
	if err != nil {
		return nil, err
	}
	// A lock row rather than an advisory lock, which would need a session.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableName(schema+".schema_lock"),
		lock.WithTableLockTimeout(lockPause, uint64(lockWait/lockPause)))
	if err != nil {
		return nil, fmt.Errorf("make migration lock: %w", err)
	}
	opts := []goose.ProviderOption{
		goose.WithTableName(schema + "." + versionTable), goose.WithLocker(locker), goose.WithDisableGlobalRegistry(true),
	}
	if log != nil {
		opts = append(opts, goose.WithSlog(log))
	}
	// No bound on silence: building an index on a large table takes its time.
	db, err := openDB(dsn, 0)
	if err != nil {
		return nil, err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db.DB, files, opts...)
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return &Migrator{db: db, schema: schema, provider: p}, nil
}

// Close closes the connections.
func (m *Migrator) Close() error { return m.db.Close() }

// Up brings the schema to SchemaVersion and returns what it applied.
func (m *Migrator) Up(ctx context.Context) ([]Migration, error) {
	if err := m.createSchema(ctx); err != nil {
		return nil, err
	}
	results, err := m.provider.Up(ctx)
	return applied(results), wrap(err, "migrate up")
}

// Down takes the newest version back and returns it; the tasks in what it drops
// are lost. Nothing to take back is not an error.
func (m *Migrator) Down(ctx context.Context) ([]Migration, error) {
	v, err := schemaVersion(ctx, m.db, m.schema)
	if err != nil || v == 0 {
		return nil, err
	}
	result, err := m.provider.Down(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate down: %w", err)
	}
	return applied([]*goose.MigrationResult{result}), nil
}

// Status lists every version. It changes nothing.
func (m *Migrator) Status(ctx context.Context) ([]Migration, error) {
	v, err := schemaVersion(ctx, m.db, m.schema)
	if err != nil {
		return nil, err
	}
	var out []Migration
	if v == 0 {
		for _, src := range m.provider.ListSources() {
			out = append(out, Migration{Version: src.Version, Name: src.Path})
		}
		return out, nil
	}
	list, err := m.provider.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("read migration status: %w", err)
	}
	for _, st := range list {
		out = append(out, Migration{Version: st.Source.Version, Name: st.Source.Path, Applied: st.State == goose.StateApplied, AppliedAt: st.AppliedAt})
	}
	return out, nil
}

func (m *Migrator) createSchema(ctx context.Context) error {
	// IF NOT EXISTS can still lose a race with another that creates it.
	_, err := m.db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS `+m.schema)
	var pe *pq.Error
	if errors.As(err, &pe) && (pe.Code == "23505" || pe.Code == "42P06") {
		return nil
	}
	return wrap(err, "create schema "+m.schema)
}

func applied(results []*goose.MigrationResult) []Migration {
	var out []Migration
	for _, r := range results {
		if r != nil && r.Error == nil {
			out = append(out, Migration{Version: r.Source.Version, Name: r.Source.Path, Applied: r.Direction == "up"})
		}
	}
	return out
}

func wrap(err error, doing string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// migrations returns the files with the schema's name put in.
func migrations(schema string) (fs.FS, error) {
	put := schemaReplacer(schema)
	out := fstest.MapFS{}
	files, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		b, err := migrationFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		out[strings.TrimPrefix(name, "migrations/")] = &fstest.MapFile{Data: []byte(put(string(b)))}
	}
	return out, nil
}

// PrintMigrations writes the schema's SQL for teams with a migration tool of
// their own: all the ups, or with down all the downs in reverse. The version table is
// written too, so that this build recognises the result.
func PrintMigrations(w io.Writer, schema string, down bool) error {
	if schema == "" {
		schema = DefaultSchema
	}
	if err := CheckSchemaName(schema); err != nil {
		return err
	}
	files, err := migrations(schema)
	if err != nil {
		return err
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return err
	}
	var b strings.Builder
	if !down {
		fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %s;\n\n", schema)
		fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s.%s (\n    id         integer   NOT NULL PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,\n"+
			"    version_id bigint    NOT NULL,\n    is_applied boolean   NOT NULL,\n    tstamp     timestamp NOT NULL DEFAULT now()\n);\n", schema, versionTable)
		fmt.Fprintf(&b, "INSERT INTO %s.%s (version_id, is_applied) VALUES (0, true);\n", schema, versionTable)
	}
	for i := range names {
		name := names[i]
		if down {
			name = names[len(names)-1-i]
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		up, dn, ok := strings.Cut(string(data), "-- +goose Down")
		if !ok {
			return fmt.Errorf("migration %s has no down part", name)
		}
		var version int64
		if _, err := fmt.Sscanf(name, "%d_", &version); err != nil {
			return fmt.Errorf("migration %s: %w", name, err)
		}
		if down {
			fmt.Fprintf(&b, "\n-- %s, down\n%s\nDELETE FROM %s.%s WHERE version_id = %d;\n", name, strings.TrimSpace(dn), schema, versionTable, version)
			continue
		}
		up = strings.TrimPrefix(strings.TrimSpace(up), "-- +goose Up")
		fmt.Fprintf(&b, "\n-- %s\n%s\n\nINSERT INTO %s.%s (version_id, is_applied) VALUES (%d, true);\n", name, strings.TrimSpace(up), schema, versionTable, version)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// CheckSchema implements Store.
func (s *Postgres) CheckSchema(ctx context.Context) error {
	v, err := schemaVersion(ctx, s.db, s.cfg.Schema)
	switch {
	case err != nil:
		return err
	case v < SchemaVersion:
		return fmt.Errorf("%w: schema %s is at version %d, this build needs %d: run `retry-consumer migrate up`", retry.ErrSchema, s.cfg.Schema, v, SchemaVersion)
	case v > SchemaVersion:
		return fmt.Errorf("%w: schema %s is at version %d, this build knows only %d: deploy a newer build", retry.ErrSchema, s.cfg.Schema, v, SchemaVersion)
	}
	return nil
}

// schemaVersion is the newest applied version; zero where there is no schema.
func schemaVersion(ctx context.Context, db *sqlx.DB, schema string) (int64, error) {
	var v sql.NullInt64
	err := db.GetContext(ctx, &v, `SELECT max(version_id) FROM `+schema+`.`+versionTable)
	var pe *pq.Error
	if errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000") {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return v.Int64, nil
}
