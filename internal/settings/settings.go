// Package settings holds what an operator sets: environment variables with the prefix SPILLWAY_, read by envconfig.
// The struct's tags are the single source of names, defaults and meanings.
package settings

import (
	"log/slog"
	"time"
)

// Prefix of every variable.
const Prefix = "SPILLWAY_"

// Settings are all settings, read and checked by Load. The tags envconfig and default are envconfig's; desc is the
// meaning, allowed is what an error says, secret marks values that are shown masked. The names are spelled out because
// envconfig, given a prefix and a name, also reads the name without the prefix, and LOG_LEVEL may be anybody's.
type Settings struct {
	Service string `envconfig:"SPILLWAY_SERVICE" allowed:"1 to 63 characters of a-z, 0-9 and -" desc:"the service whose tasks, queues and scenes these are"`

	PostgresDSN      string `envconfig:"SPILLWAY_POSTGRES_DSN" secret:"true" allowed:"like postgres://user:password@host:5432/database or host=… dbname=… (in a URL, percent-encode what is special in a password)" desc:"where Postgres is: a URL or key=value pairs"`
	PostgresSchema   string `envconfig:"SPILLWAY_POSTGRES_SCHEMA" default:"spillway" allowed:"1 to 63 characters of a-z, 0-9 and _, not beginning with a digit or pg_" desc:"the schema that holds Spillway's tables"`
	PostgresMaxConns int    `envconfig:"SPILLWAY_POSTGRES_MAX_CONNS" default:"10" allowed:"a whole number from 1 to 10000" desc:"most connections to Postgres of this process"`

	AMQPURL       string `envconfig:"SPILLWAY_AMQP_URL" secret:"true" allowed:"like amqp://user:password@host:5672/vhost or amqps://…, with commas between several hosts of one cluster (percent-encode what is special in a password)" desc:"where RabbitMQ is; several hosts and TLS: see operations.md"`
	ManagementURL string `envconfig:"SPILLWAY_MANAGEMENT_URL" secret:"true" allowed:"like http://user:password@host:15672" desc:"RabbitMQ's management API, for topology verify; optional"`
	QueueKind     string `envconfig:"SPILLWAY_QUEUE_KIND" default:"quorum" allowed:"quorum or classic" desc:"type of the queues: quorum or classic"`

	Concurrency  int           `envconfig:"SPILLWAY_CONCURRENCY" default:"64" allowed:"a whole number from 1 to 10000" desc:"most tasks that this process runs at once"`
	Lease        time.Duration `envconfig:"SPILLWAY_LEASE" default:"30s" allowed:"a duration from 1s to 24h, such as 30s" desc:"how long a claim lasts unless it is renewed; tasks may run longer"`
	Grace        time.Duration `envconfig:"SPILLWAY_GRACE" default:"20s" allowed:"a duration of 0s or more, such as 20s" desc:"at a stop, how long running tasks may go on before they are handed back"`
	ScanInterval time.Duration `envconfig:"SPILLWAY_SCAN_INTERVAL" default:"5s" allowed:"a duration from 100ms to 1h, such as 5s" desc:"how often one process of the service scans for expired leases and lost wake-ups"`
	Retention    time.Duration `envconfig:"SPILLWAY_RETENTION" default:"168h" allowed:"a duration of 1m or more, such as 168h" desc:"how long ended tasks and their journal are kept"`
	MaxPayload   int           `envconfig:"SPILLWAY_MAX_PAYLOAD" default:"1048576" allowed:"a whole number of bytes from 1 to 134217728" desc:"most bytes of a task's arguments"`
	ConsumerName string        `envconfig:"SPILLWAY_CONSUMER_NAME" allowed:"at most 100 printable characters" desc:"the name of this process in the journal; default: host, process id and a random part"`

	StartTimeout time.Duration `envconfig:"SPILLWAY_START_TIMEOUT" default:"0s" allowed:"a duration of 0s (for ever) or more, such as 2m" desc:"how long serve waits at start for Postgres and RabbitMQ; 0s: for ever"`
	LogLevel     slog.Level    `envconfig:"SPILLWAY_LOG_LEVEL" default:"info" allowed:"debug, info, warn or error" desc:"least important log lines that are written: debug, info, warn or error"`
	LogFormat    string        `envconfig:"SPILLWAY_LOG_FORMAT" default:"text" allowed:"text or json" desc:"form of the log lines on stderr: text or json"`
}
