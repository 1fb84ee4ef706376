package persistence_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/retry"
)

func migrator(t *testing.T, schema string) *persistence.Migrator {
	t.Helper()
	m, err := persistence.NewMigrator(storetest.DSN(t), schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

// admin is a store that tests use for statements of their own.
func admin(t *testing.T, schema string) *persistence.Postgres {
	t.Helper()
	return storetest.OpenConfig(t, persistence.Config{Schema: schema, MaxConns: 2})
}

func exec(t *testing.T, s *persistence.Postgres, query string) {
	t.Helper()
	if _, err := s.DB().ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// shape is all that a schema holds, with its name taken out.
func shape(t *testing.T, s *persistence.Postgres, schema string) []string {
	t.Helper()
	var out []string
	for _, query := range []string{
		`SELECT 'column ' || concat_ws(' ', table_name, ordinal_position, column_name, data_type, udt_name, is_nullable, column_default, is_identity, identity_generation)
			FROM information_schema.columns WHERE table_schema = $1`,
		`SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = $1`,
		`SELECT 'constraint ' || conrelid::regclass || ' ' || contype::text || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = $1::regnamespace`,
		`SELECT 'sequence ' || concat_ws(' ', sequence_name, data_type, increment, maximum_value) FROM information_schema.sequences WHERE sequence_schema = $1`,
		`SELECT 'options ' || relname || ' ' || relkind::text || ' ' || COALESCE(array_to_string(reloptions, ','), '') FROM pg_class WHERE relnamespace = $1::regnamespace`,
	} {
		var rows []string
		if err := s.DB().SelectContext(t.Context(), &rows, query, schema); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		for _, r := range rows {
			// The lock is goose's, made by its first run.
			if !strings.Contains(r, "schema_lock") {
				out = append(out, strings.ReplaceAll(r, schema, "S"))
			}
		}
	}
	slices.Sort(out)
	return out
}

func diff(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("%s: too much: %s", what, g)
		}
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s: missing: %s", what, w)
		}
	}
}

func TestMigrate(t *testing.T) {
	schema := storetest.SchemaName(t)
	m, s := migrator(t, schema), admin(t, schema)
	ctx := t.Context()
	check := func(doing string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", doing, err)
		}
	}
	status := func(applied bool) {
		t.Helper()
		list, err := m.Status(ctx)
		check("status", err)
		if len(list) != persistence.SchemaVersion {
			t.Fatalf("%d versions, want %d", len(list), persistence.SchemaVersion)
		}
		for i, v := range list {
			if v.Version != int64(i+1) || v.Applied != applied || v.AppliedAt.IsZero() == applied || !strings.HasSuffix(v.Name, ".sql") {
				t.Errorf("version %d is %+v, want applied %v", i+1, v, applied)
			}
		}
	}
	status(false) // nothing there, and asking makes nothing
	var n int
	check("look", s.DB().GetContext(ctx, &n, `SELECT count(*) FROM pg_namespace WHERE nspname = $1`, schema))
	if n != 0 {
		t.Error("asking for the status made the schema")
	}
	down, err := m.Down(ctx)
	check("down without anything", err)
	if len(down) != 0 {
		t.Errorf("took back %+v", down)
	}
	if err := s.CheckSchema(ctx); !errors.Is(err, retry.ErrSchema) || !strings.Contains(err.Error(), "migrate up") {
		t.Errorf("an empty database: %v", err)
	}

	up, err := m.Up(ctx)
	check("up", err)
	if len(up) != persistence.SchemaVersion || !up[0].Applied || up[0].Version != 1 {
		t.Errorf("applied %+v", up)
	}
	status(true)
	check("check", s.CheckSchema(ctx))
	first := shape(t, s, schema)
	up, err = m.Up(ctx)
	check("up again", err)
	if len(up) != 0 {
		t.Errorf("applied again: %+v", up)
	}
	for range persistence.SchemaVersion {
		down, err = m.Down(ctx)
		check("down", err)
		if len(down) != 1 || down[0].Applied {
			t.Errorf("took back %+v", down)
		}
	}
	status(false)
	if err := s.CheckSchema(ctx); !errors.Is(err, retry.ErrSchema) {
		t.Errorf("after down: %v", err)
	}
	for _, row := range shape(t, s, schema) {
		if !strings.Contains(row, "schema_version") {
			t.Errorf("down left: %s", row)
		}
	}
	_, err = m.Up(ctx)
	check("up after down", err)
	diff(t, "up after down", shape(t, s, schema), first)

	// Newer and older than this build.
	exec(t, s, fmt.Sprintf(`INSERT INTO %s.schema_version (version_id, is_applied) VALUES (%d, true)`, schema, persistence.SchemaVersion+1))
	if err := s.CheckSchema(ctx); !errors.Is(err, retry.ErrSchema) || !strings.Contains(err.Error(), "newer build") {
		t.Errorf("a newer schema: %v", err)
	}
	exec(t, s, fmt.Sprintf(`DELETE FROM %s.schema_version WHERE version_id >= %d`, schema, persistence.SchemaVersion))
	if err := s.CheckSchema(ctx); !errors.Is(err, retry.ErrSchema) || !strings.Contains(err.Error(), "migrate up") {
		t.Errorf("an older schema: %v", err)
	}
}

func TestMigrateTwoAtOnce(t *testing.T) {
	schema := storetest.SchemaName(t)
	var wg sync.WaitGroup
	applied := make([]int, 3)
	for i := range applied {
		m := migrator(t, schema)
		wg.Go(func() {
			up, err := m.Up(t.Context())
			if err != nil {
				t.Errorf("up: %v", err)
			}
			applied[i] = len(up)
		})
	}
	wg.Wait()
	if sum := applied[0] + applied[1] + applied[2]; sum != persistence.SchemaVersion {
		t.Errorf("applied %v versions, want %d in all", applied, persistence.SchemaVersion)
	}
	if err := admin(t, schema).CheckSchema(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPrintMigrations(t *testing.T) {
	migrated, printed := storetest.Schema(t), storetest.SchemaName(t)
	s := admin(t, printed)
	var up, down bytes.Buffer
	if err := persistence.PrintMigrations(&up, printed, false); err != nil {
		t.Fatal(err)
	}
	if err := persistence.PrintMigrations(&down, printed, true); err != nil {
		t.Fatal(err)
	}
	exec(t, s, up.String())
	diff(t, "printed", shape(t, s, printed), shape(t, s, migrated))
	if err := s.CheckSchema(t.Context()); err != nil {
		t.Error(err)
	}
	list, err := migrator(t, printed).Up(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("up after print applied %+v, %v", list, err)
	}
	exec(t, s, down.String())
	if err := s.CheckSchema(t.Context()); !errors.Is(err, retry.ErrSchema) {
		t.Errorf("after the printed down: %v", err)
	}
	if _, err := migrator(t, printed).Up(t.Context()); err != nil {
		t.Errorf("up after the printed down: %v", err)
	}
	for _, text := range []string{up.String(), down.String()} {
		if strings.Contains(text, "{schema}") || strings.Contains(text, "+goose") {
			t.Errorf("printed SQL is not finished:\n%s", text)
		}
	}
	up.Reset()
	if err := persistence.PrintMigrations(&up, "", false); err != nil || !strings.Contains(up.String(), "CREATE SCHEMA IF NOT EXISTS spillway;") {
		t.Errorf("the default schema is not printed: %v", err)
	}
	if err := persistence.PrintMigrations(&up, "a;b", false); !errors.Is(err, retry.ErrInvalid) {
		t.Errorf("a bad schema name: %v", err)
	}
}

func TestSchemaNames(t *testing.T) {
	s := admin(t, storetest.Schema(t))
	var reserved []string
	if err := s.DB().SelectContext(t.Context(), &reserved, `SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T') AND word ~ '^[a-z_]+$'`); err != nil {
		t.Fatal(err)
	}
	if len(reserved) < 50 {
		t.Fatalf("only %d reserved words found", len(reserved))
	}
	bad := append(reserved, "Upper", "1a", "a b", "a.b", `a"b`, "a;b", "pg_x", strings.Repeat("a", 64), "ä", "information_schema")
	for _, name := range bad {
		if _, err := persistence.NewMigrator(storetest.DSN(t), name, nil); !errors.Is(err, retry.ErrInvalid) || !strings.Contains(err.Error(), "schema") {
			t.Errorf("schema %q: %v", name, err)
		}
		if _, err := persistence.Open(persistence.Config{DSN: storetest.DSN(t), Service: "a", Schema: name}); !errors.Is(err, retry.ErrInvalid) {
			t.Errorf("schema %q: %v", name, err)
		}
	}
	for _, name := range []string{"spillway", "_a", "a1", strings.Repeat("a", 63), "abort", "users"} {
		if err := persistence.CheckSchemaName(name); err != nil {
			t.Errorf("schema %q: %v", name, err)
		}
	}
}

func TestLongSchemaName(t *testing.T) {
	// Names that goose makes of it must not be cut.
	base := storetest.SchemaName(t)
	name := base + strings.Repeat("x", 63-len(base))
	m := migrator(t, name)
	s := admin(t, name)
	t.Cleanup(func() {
		// Before the store's own clean-up, which closes it.
		if _, err := s.DB().Exec(`DROP SCHEMA IF EXISTS ` + name + ` CASCADE`); err != nil {
			t.Errorf("drop: %v", err)
		}
	})
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckSchema(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.Insert(t.Context(), []persistence.NewTask{{Scene: "a"}}); err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	ok := persistence.Config{DSN: "postgres://localhost/x", Service: "a"}
	for name, set := range map[string]func(*persistence.Config){
		"service":           func(c *persistence.Config) { c.Service = "No" },
		"schema":            func(c *persistence.Config) { c.Schema = "No" },
		"max conns":         func(c *persistence.Config) { c.MaxConns = -1 },
		"statement timeout": func(c *persistence.Config) { c.StatementTimeout = -1 },
		"horizon":           func(c *persistence.Config) { c.Horizon = -1 },
		"postgres dsn":      func(c *persistence.Config) { c.DSN = " " },
	} {
		c := ok
		set(&c)
		if _, err := persistence.Open(c); !errors.Is(err, retry.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, err := persistence.Open(ok)
	if err != nil {
		t.Fatal(err)
	}
	if s.Service() != "a" {
		t.Errorf("service is %q", s.Service())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestBadDSNShowsNoPassword(t *testing.T) {
	const secret = "s3cr3tpart"
	for _, dsn := range []string{
		"postgres://user:" + secret + "#x@host/db",
		"postgres://user:" + secret + "/x@host/db",
		"postgres://user:" + secret + " x@host/db",
		"postgres://user:%zz" + secret + "@host/db",
		"postgres://user:" + secret + "@host:port/db",
		"postgres://user:" + secret + "@host:70000/db",
		"postgres://user:" + secret + "@[::1/db",
		"postgres://user:" + secret + "\x7f@host/db",
		"mysql://user:" + secret + "@host/db",
		"://user:" + secret + "@host/db",
		"user:" + secret + "@tcp(host)/db",
		"host=h password=my " + secret,
		"host=h password='" + secret,
		"host=h password=" + secret + `\`,
		"password=" + secret + " port=abc",
		"password=" + secret + " sslmode=perhaps",
		"password=" + secret + " connect_timeout=soon",
		"password=" + secret + " client_encoding=latin1",
		"password=" + secret + " sslmode=require sslrootcert=/does/not/exist sslcert=/x sslkey=/y",
		"password=" + secret + " service=none",
		secret,
	} {
		s, err := persistence.Open(persistence.Config{DSN: dsn, Service: "a"})
		if err == nil {
			// lib/pq accepts it; it must not tell when it connects either.
			err = s.Ping(t.Context())
			_ = s.Close()
			if err == nil {
				t.Errorf("%q connects", dsn)
				continue
			}
		} else if !errors.Is(err, retry.ErrInvalid) || !strings.Contains(err.Error(), "postgres dsn") {
			t.Errorf("the error about %q does not name the setting: %v", dsn, err)
		}
		if strings.Contains(err.Error(), secret) || strings.Contains(fmt.Sprintf("%+v", err), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
		m, err := persistence.NewMigrator(dsn, "", nil)
		if err == nil {
			_ = m.Close()
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the migrator's error shows the password: %v", err)
		}
	}
}

func TestRefusedLoginShowsNoPassword(t *testing.T) {
	const secret = "s3cr3tpart"
	u, err := url.Parse(storetest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		s := storetest.OpenConfig(t, persistence.Config{DSN: u.String(), Schema: "none"})
		m, err := persistence.NewMigrator(u.String(), "none", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m.Close() }()
		_, upErr := m.Up(t.Context())
		for _, err := range []error{s.Ping(t.Context()), s.CheckSchema(t.Context()), upErr} {
			if err == nil {
				return // this server lets anyone in
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error shows the password: %v", what, err)
			}
		}
	}
	right := u.User
	u.User = url.UserPassword("nobody_"+strings.ToLower(t.Name()), secret)
	refused("an unknown user")
	u.User = url.UserPassword(right.Username(), secret)
	refused("a wrong password")
	u.Host = "127.0.0.1:1"
	refused("nobody there")
}
