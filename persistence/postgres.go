package persistence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
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
	DispatchGap = 30 * time.Second
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
	if !schemaName.MatchString(name) || strings.HasPrefix(name, "pg_") {
		return retry.NewFieldError("schema", name, "1 to 63 characters of a-z, 0-9 and _, not beginning with a digit or pg_")
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
	if err := s.db.PingContext(ctx); err != nil {
		return fmt.Errorf("reach postgres: %w", err)
	}
	return nil
}

func schemaReplacer(schema string) func(string) string {
	return func(stmt string) string { return strings.ReplaceAll(stmt, "{schema}", schema) }
}

// openDB opens a pool. silence is how long a read or write may take; zero
// means for ever.
func openDB(dsn string, silence time.Duration) (*sqlx.DB, error) {
	bad := func(err error) error {
		// url.Error repeats the URL, and with it the password.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return fmt.Errorf("%w: %w", &retry.FieldError{Field: "postgres dsn", Value: "the given value",
			Allowed: "like postgres://user:password@host:5432/database or host=… dbname=…"}, err)
	}
	if strings.TrimSpace(dsn) == "" {
		return nil, retry.NewFieldError("postgres dsn", dsn, "like postgres://user:password@host:5432/database")
	}
	pc, err := pq.NewConfig(dsn)
	if err != nil {
		return nil, bad(err)
	}
	if pc.ConnectTimeout <= 0 {
		pc.ConnectTimeout = DefaultConnectTimeout
	}
	if !strings.Contains(dsn, "sslmode") {
		pc.SSLMode = pq.SSLModePrefer
	}
	if pc.ApplicationName == "" {
		pc.ApplicationName = "spillway"
	}
	// One round trip a statement, and no named statements that a pooler would
	// have to know.
	pc.BinaryParameters = true
	connector, err := pq.NewConnectorConfig(pc)
	if err != nil {
		return nil, bad(err)
	}
	connector.Dialer(dialer{silence: silence})
	return sqlx.NewDb(sql.OpenDB(connector), "postgres"), nil
}

// dialer makes connections on which every read and write has a deadline. lib/pq
// has none of its own: on a frozen network it would wait for ever.
type dialer struct{ silence time.Duration }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	nd := net.Dialer{KeepAlive: 15 * time.Second}
	c, err := nd.DialContext(ctx, network, address)
	if err != nil || d.silence <= 0 {
		return c, err
	}
	return &impatientConn{Conn: c, silence: d.silence}, nil
}

type impatientConn struct {
	net.Conn
	silence time.Duration
}

func (c *impatientConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *impatientConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// again runs f up to four times while Postgres says that it rolled f back for
// the sake of another transaction (deadlock, serialisation).
func again(ctx context.Context, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		var pe *pq.Error
		if err == nil || try == 3 || ctx.Err() != nil || !errors.As(err, &pe) || (pe.Code != "40P01" && pe.Code != "40001") {
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
