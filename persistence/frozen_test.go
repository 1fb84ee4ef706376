package persistence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
)

func TestFrozenServer(t *testing.T) {
	schema := storetest.Schema(t)
	// patience is what a loaded machine may add to the times below.
	const patience = 8 * time.Second
	within := func(t *testing.T, limit time.Duration, f func()) {
		t.Helper()
		start := time.Now()
		f()
		if took := time.Since(start); took > limit+patience {
			t.Errorf("took %v, want about %v", took, limit)
		}
	}
	tasks := []persistence.NewTask{{Scene: "a"}}

	t.Run("the statement timeout ends every statement", func(t *testing.T) {
		p, dsn := storetest.NewLossy(t)
		s := storetest.OpenConfig(t, persistence.Config{DSN: dsn, Schema: schema, StatementTimeout: 300 * time.Millisecond, MaxConns: 2})
		if _, err := s.Insert(t.Context(), tasks); err != nil {
			t.Fatal(err)
		}
		p.Freeze()
		for name, f := range map[string]func() error{
			"insert": func() error { _, err := s.Insert(t.Context(), tasks); return err },
			"in a transaction": func() error {
				_, err := s.Insert(t.Context(), []persistence.NewTask{{Scene: "a", ReuseKey: true}})
				return err
			},
			"undispatched": func() error { _, err := s.Undispatched(t.Context(), 10); return err },
			"get":          func() error { _, err := s.Get(t.Context(), 1); return err },
			"ping":         func() error { return s.Ping(t.Context()) },
			"check schema": func() error { return s.CheckSchema(t.Context()) },
		} {
			within(t, time.Second, func() {
				if err := f(); err == nil {
					t.Errorf("%s on a frozen server returned no error", name)
				}
			})
		}
		p.Thaw()
		if _, err := s.Insert(t.Context(), tasks); err != nil {
			t.Errorf("the server is back, but: %v", err)
		}
	})
	t.Run("a context ends a statement before that", func(t *testing.T) {
		p, dsn := storetest.NewLossy(t)
		s := storetest.OpenConfig(t, persistence.Config{DSN: dsn, Schema: schema, StatementTimeout: time.Hour, MaxConns: 1})
		if _, err := s.Insert(t.Context(), tasks); err != nil {
			t.Fatal(err)
		}
		p.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		within(t, 2*time.Second, func() {
			_, err := s.Insert(ctx, tasks)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error is %v, want the context's", err)
			}
		})
		// Now the pool has to connect, to a server that accepts and says nothing.
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		within(t, 2*time.Second, func() {
			if err := s.Ping(ctx); err == nil {
				t.Error("connected to a frozen server")
			}
		})
		p.Thaw()
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("the server is back, but: %v", err)
		}
	})
	t.Run("a context that ended long ago does not break the next statement", func(t *testing.T) {
		p, dsn := storetest.NewLossy(t)
		s := p.Store(dsn, schema)
		ctx, cancel := context.WithCancel(t.Context())
		if err := s.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		tx, err := s.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		if _, err := s.InsertTx(ctx, tx, tasks); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := tx.Commit(); err != nil {
			t.Errorf("commit after a statement's context ended: %v", err)
		}
	})
	t.Run("connect_timeout bounds connecting", func(t *testing.T) {
		p, dsn := storetest.NewLossy(t)
		p.Freeze()
		s := storetest.OpenConfig(t, persistence.Config{DSN: dsn + "&connect_timeout=1", Schema: schema, StatementTimeout: time.Hour})
		within(t, 3*time.Second, func() {
			if err := s.Ping(t.Context()); err == nil {
				t.Error("connected to a frozen server")
			}
		})
	})
}
