// Package storetest gives other packages' tests a store of their own on the
// real server, and holds the suite that every Store must pass.
package storetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/persistence"
)

// Service is the service of the stores that Open returns.
const Service = "test"

// DSN is the test server's. The test fails where it is not set.
func DSN(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv("SPILLWAY_POSTGRES_DSN")
	if dsn == "" {
		t.Fatal(`SPILLWAY_POSTGRES_DSN is not set: run scripts/services up && eval "$(scripts/services env)"`)
	}
	return dsn
}

// Open returns a store for Service in a fresh, migrated schema that goes when
// the test ends.
func Open(t testing.TB) *persistence.Postgres {
	t.Helper()
	return OpenService(t, Service)
}

// OpenService is Open for another service.
func OpenService(t testing.TB, service string) *persistence.Postgres {
	t.Helper()
	return OpenConfig(t, persistence.Config{Service: service})
}

// OpenConfig is Open with settings. An empty DSN is the test server's, an empty Schema a
// fresh one. A schema that is named must exist.
func OpenConfig(t testing.TB, cfg persistence.Config) *persistence.Postgres {
	t.Helper()
	if cfg.DSN == "" {
		cfg.DSN = DSN(t)
	}
	if cfg.Service == "" {
		cfg.Service = Service
	}
	if cfg.Schema == "" {
		cfg.Schema = Schema(t)
	}
	s, err := persistence.Open(cfg)
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return s
}

// Schema returns the name of a fresh, migrated schema that goes when the test
// ends.
func Schema(t testing.TB) string {
	t.Helper()
	name := SchemaName(t)
	m, err := persistence.NewMigrator(DSN(t), name, nil)
	if err != nil {
		t.Fatalf("make migrator: %v", err)
	}
	defer func() { _ = m.Close() }()
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatalf("migrate %s: %v", name, err)
	}
	return name
}

// SchemaName returns a name that no other test has. Whatever schema of this
// name exists when the test ends is dropped.
func SchemaName(t testing.TB) string {
	t.Helper()
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	name := "t_" + hex.EncodeToString(b)
	dsn := DSN(t)
	t.Cleanup(func() {
		// The test's own context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := dropSchema(ctx, dsn, name); err != nil {
			t.Errorf("drop schema %s: %v", name, err)
		}
	})
	return name
}

func dropSchema(ctx context.Context, dsn, name string) error {
	s, err := persistence.Open(persistence.Config{DSN: dsn, Service: Service, MaxConns: 1})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	_, err = s.DB().ExecContext(ctx, `DROP SCHEMA IF EXISTS `+name+` CASCADE`)
	return err
}
