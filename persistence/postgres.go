package persistence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/spillway-mq/spillway/retry"
)

// Defaults of a Config.
const (
	DefaultSchema           = "spillway"
	DefaultMaxConns         = 10
	DefaultConnectTimeout   = 10 * time.Second
	DefaultStatementTimeout = 30 * time.Second
	DefaultHorizon          = 16383 * 100 * time.Millisecond
)

// How a waiting row's dispatch_after moves.
const (
	// DispatchGap is how long after its due time a task that still waits is
	// taken for one whose wake-up was lost.
	DispatchGap = 15 * time.Second
	// MaxDispatchGap bounds the gap, which doubles with each re-publication.
	MaxDispatchGap = 15 * time.Minute
	// MaxErrorLen bounds a stored error text in bytes; what is longer is cut
	// and marked as cut.
	MaxErrorLen = 4096
)

// Config of a Postgres store.
type Config struct {
	// DSN as lib/pq takes it (a URL or key=value). Required. connect_timeout and
	// sslmode are set where it does not name them: 10 s and prefer.
	DSN string
	// Service whose tasks these are. Required.
	Service string
	// Schema that holds the tables. Empty: DefaultSchema.
	Schema string
	// MaxConns bounds the connections. Zero: DefaultMaxConns.
	MaxConns int
	// StatementTimeout is how long a silent server is waited for before its
	// connection counts as broken. Zero: DefaultStatementTimeout. It is kept
	// on the client, so that a frozen network ends it too.
	StatementTimeout time.Duration
	// Horizon is the longest delay that a wake-up message can carry. Tasks due
	// later wait here, and a scan wakes them. Zero: DefaultHorizon.
	Horizon time.Duration
	// Logger. nil: slog.Default.
	Logger *slog.Logger
}

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// CheckSchemaName returns a *retry.FieldError unless name can be a schema's.
func CheckSchemaName(name string) error {
	if !schemaName.MatchString(name) || strings.HasPrefix(name, "pg_") || name == "information_schema" {
		return retry.NewFieldError("schema", name, "1 to 63 characters of a-z, 0-9 and _, not beginning with a digit or pg_, not information_schema")
	}
	if slices.Contains(strings.Fields(reserved), name) {
		return retry.NewFieldError("schema", name, "a name that is no reserved word of SQL")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Schema == "" {
		c.Schema = DefaultSchema
	}
	if c.MaxConns == 0 {
		c.MaxConns = DefaultMaxConns
	}
	if c.StatementTimeout == 0 {
		c.StatementTimeout = DefaultStatementTimeout
	}
	if c.Horizon == 0 {
		c.Horizon = DefaultHorizon
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// check returns every *retry.FieldError joined.
func (c Config) check() error {
	errs := []error{retry.CheckService(c.Service), CheckSchemaName(c.Schema)}
	bad := func(field string, value any, allowed string) {
		errs = append(errs, retry.NewFieldError(field, value, allowed))
	}
	if c.MaxConns < 1 {
		bad("max conns", c.MaxConns, "1 or more")
	}
	if c.StatementTimeout < 0 {
		bad("statement timeout", c.StatementTimeout, "above 0")
	}
	if c.Horizon < 0 {
		bad("horizon", c.Horizon, "above 0")
	}
	return errors.Join(errs...)
}

// Postgres is the Store on a Postgres server, 14 or newer. Its methods may be
// called concurrently.
type Postgres struct {
	cfg Config
	db  *sqlx.DB
	q   func(string) string // puts the schema's name into a statement

	ids struct { // a block of ids taken from the sequence
		sync.Mutex
		free []int64
	}
}

var _ Store = (*Postgres)(nil)

// Open returns a store. It does not connect: the first statement does. The
// error is a *retry.FieldError that names the setting and shows no password.
func Open(cfg Config) (*Postgres, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	db, err := openDB(cfg.DSN, cfg.StatementTimeout)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(cfg.MaxConns)
	db.SetMaxIdleConns(cfg.MaxConns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return &Postgres{cfg: cfg, db: db, q: schemaReplacer(cfg.Schema)}, nil
}

// Close closes the connections. Statements that run are waited for.
func (s *Postgres) Close() error { return s.db.Close() }

// DB is the pool, for callers that want to share it.
func (s *Postgres) DB() *sqlx.DB { return s.db }

// Service is the service whose tasks these are.
func (s *Postgres) Service() string { return s.cfg.Service }

// Ping connects and asks for nothing.
func (s *Postgres) Ping(ctx context.Context) error {
	// Not PingContext: lib/pq turns each of its errors into "bad connection", for which
	// database/sql tries again and again.
	return s.exec(ctx, "reach postgres", `SELECT 1`)
}

func schemaReplacer(schema string) func(string) string {
	return func(stmt string) string { return strings.ReplaceAll(stmt, "{schema}", schema) }
}

const dsnAllowed = "like postgres://user:password@host:5432/database?sslmode=require, or host=… user=… password=… dbname=…"

// badDSN says what is wrong with a DSN without showing any of it: the parsers' own errors
// repeat the piece that they stumbled over, which can be the password.
func badDSN(why string) error {
	return &retry.FieldError{Field: "postgres dsn", Value: "the given value (" + why + ")", Allowed: dsnAllowed}
}

// checkDSN returns a *retry.FieldError unless lib/pq can read dsn.
func checkDSN(dsn string) (pq.Config, error) {
	if strings.TrimSpace(dsn) == "" {
		return pq.Config{}, badDSN("empty")
	}
	isURL := strings.Contains(dsn, "://")
	if isURL {
		u, err := url.Parse(dsn)
		if err != nil {
			return pq.Config{}, badDSN("not a URL: special characters of the password must be percent-encoded")
		}
		if u.Scheme != "postgres" && u.Scheme != "postgresql" {
			return pq.Config{}, badDSN("a URL, but not of postgres")
		}
	}
	pc, err := pq.NewConfig(dsn)
	switch {
	case err == nil:
		return pc, nil
	case settingError.MatchString(err.Error()):
		// About one setting, and none that is checked holds a secret.
		return pq.Config{}, badDSN(strings.TrimPrefix(err.Error(), "pq: "))
	case isURL:
		return pq.Config{}, badDSN("not a URL as lib/pq reads it")
	default:
		return pq.Config{}, badDSN("not a list of key=value: values with spaces must be in single quotes")
	}
}

var settingError = regexp.MustCompile(`^pq: (wrong value for "(sslmode|sslnegotiation|port|connect_timeout|target_session_attrs|load_balance_hosts)": |unsupported client_encoding|environment variable)`)

// openDB opens a pool. silence is how long a read or write may take; zero
// means for ever.
func openDB(dsn string, silence time.Duration) (*sqlx.DB, error) {
	c, err := newConnector(dsn, silence)
	if err != nil {
		return nil, err
	}
	return sqlx.NewDb(sql.OpenDB(c), "postgres"), nil
}

func newConnector(dsn string, silence time.Duration) (driver.Connector, error) {
	pc, err := checkDSN(dsn)
	if err != nil {
		return nil, err
	}
	if pc.ConnectTimeout <= 0 {
		pc.ConnectTimeout = DefaultConnectTimeout
	}
	if pc.SSLMode == "" || !strings.Contains(dsn, "sslmode") && os.Getenv("PGSSLMODE") == "" {
		pc.SSLMode = pq.SSLModePrefer
	}
	if pc.ApplicationName == "" {
		pc.ApplicationName = "spillway"
	}
	// One round trip a statement, and no named statements that a pooler would
	// have to know.
	pc.BinaryParameters = true
	pqc, err := pq.NewConnectorConfig(pc)
	if err != nil {
		return nil, badDSN("its settings do not fit together")
	}
	pqc.Dialer(dialer{silence: silence})
	return connector{pqc}, nil
}

// again runs f up to four times while Postgres says that it rolled f back for
// the sake of another transaction (deadlock, serialisation). An error after ctx has ended is
// ctx's too: what the driver says then is only how it noticed.
func again(ctx context.Context, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		var pe *pq.Error
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case try == 3 || ctx.Err() != nil || !errors.As(err, &pe) || (pe.Code != "40P01" && pe.Code != "40001"):
			return err
		}
	}
}

// micros turns a duration into what the statements count in, rounded up, so
// that nothing is ever early.
func micros(d time.Duration) int64 {
	us := d.Microseconds()
	if d > 0 && d%time.Microsecond != 0 {
		us++
	}
	return us
}

func fromMicros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
