package persistence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/jmoiron/sqlx"
)

// Record makes the store hand every statement that it runs to f, parameters and all.
func (s *Postgres) Record(t testing.TB, f func(query string, args []driver.NamedValue)) {
	t.Helper()
	old, err := newConnector(s.cfg.DSN, s.cfg.StatementTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	s.db = sqlx.NewDb(sql.OpenDB(recorder{old, f}), "postgres")
	s.db.SetMaxOpenConns(1)
}

type recorder struct {
	driver.Connector
	f func(query string, args []driver.NamedValue)
}

func (r recorder) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := r.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return recordedConn{c.(*boundConn), r.f}, nil
}

type recordedConn struct {
	*boundConn
	f func(query string, args []driver.NamedValue)
}

func (c recordedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.f(query, args)
	return c.boundConn.QueryContext(ctx, query, args)
}

func (c recordedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.f(query, args)
	return c.boundConn.ExecContext(ctx, query, args)
}
