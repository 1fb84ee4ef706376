package settings

import (
	"errors"
	"log/slog"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/kelseyhightower/envconfig"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/mask"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// Error holds everything that is wrong with the settings. It is retry.ErrInvalid to errors.Is.
type Error struct {
	// Problems in the order of the settings. Field is the variable's name.
	Problems []*retry.FieldError
}

// Error implements error, with one line for each problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Error()
		if p.Value == notSet {
			lines[i] = p.Field + " is not set: must be " + p.Allowed
		}
	}
	return "bad settings:\n  " + strings.Join(lines, "\n  ")
}

// notSet is the value of a required variable that is missing.
const notSet = "not set"

// Is makes every Error a retry.ErrInvalid.
func (e *Error) Is(target error) bool { return target == retry.ErrInvalid }

// Load reads and checks all settings. required are the variables that must be set as well, such as SPILLWAY_SERVICE. A
// variable that is set to nothing counts as not set: compose files and charts do that. The error is an *Error with all
// problems at once; the settings that are right are filled in even then.
func Load(required ...string) (Settings, error) {
	var s Settings
	var problems []*retry.FieldError
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		f := describe(v.Type().Field(i))
		value, isSet := f.lookup()
		switch {
		case !isSet && slices.Contains(required, f.name):
			problems = append(problems, &retry.FieldError{Field: f.name, Value: notSet, Allowed: f.allowed})
		case decodeField(v.Field(i), f, isSet) != nil:
			problems = append(problems, f.wrong(value))
		case isSet && !s.allows(f.name):
			problem := f.wrong(value)
			if f.name == "SPILLWAY_AMQP_URL" { // it knows which part is wrong, and shows no password
				var fe *retry.FieldError
				if errors.As(amqpconn.Check(value, nil), &fe) {
					problem.Allowed = fe.Allowed
					if fe.Field != "amqp url" {
						problem.Value, problem.Allowed = fe.Value, fe.Allowed+" ("+fe.Field+")"
					}
				}
			}
			problems = append(problems, problem)
		}
	}
	if len(problems) > 0 {
		return s, &Error{Problems: problems}
	}
	return s, nil
}

// decodeField lets envconfig read one field, so that the first bad value does not hide the others.
func decodeField(dst reflect.Value, f field, isSet bool) error {
	tag, prefix := f.tag, ""
	if !isSet {
		// Looked up under a name that cannot be set, so that the default counts.
		tag = reflect.StructTag(strings.Replace(string(tag), "envconfig:", "not:", 1))
		prefix = "\x00"
	}
	one := reflect.New(reflect.StructOf([]reflect.StructField{{Name: f.goName, Type: dst.Type(), Tag: tag}}))
	if err := envconfig.Process(prefix, one.Interface()); err != nil {
		return err
	}
	dst.Set(one.Elem().Field(0))
	return nil
}

// allows says whether a decoded value is one that its tag allows.
func (s *Settings) allows(name string) bool {
	switch name {
	case "SPILLWAY_SERVICE":
		return retry.CheckService(s.Service) == nil
	case "SPILLWAY_POSTGRES_DSN":
		return checkDSN(s.PostgresDSN)
	case "SPILLWAY_POSTGRES_SCHEMA":
		return persistence.CheckSchemaName(s.PostgresSchema) == nil
	case "SPILLWAY_POSTGRES_MAX_CONNS":
		return s.PostgresMaxConns >= 1 && s.PostgresMaxConns <= 10_000
	case "SPILLWAY_AMQP_URL":
		return amqpconn.Check(s.AMQPURL, nil) == nil
	case "SPILLWAY_MANAGEMENT_URL":
		u, err := url.Parse(s.ManagementURL)
		return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
	case "SPILLWAY_QUEUE_KIND":
		return s.QueueKind == "quorum" || s.QueueKind == "classic"
	case "SPILLWAY_CONCURRENCY":
		return s.Concurrency >= 1 && s.Concurrency <= 10_000
	case "SPILLWAY_LEASE":
		return s.Lease >= minLease && s.Lease <= maxLease
	case "SPILLWAY_GRACE":
		return s.Grace >= 0
	case "SPILLWAY_SCAN_INTERVAL":
		return s.ScanInterval >= minScan && s.ScanInterval <= maxScan
	case "SPILLWAY_RETENTION":
		return s.Retention >= minRetention
	case "SPILLWAY_MAX_PAYLOAD":
		return s.MaxPayload >= 1 && s.MaxPayload <= 128<<20
	case "SPILLWAY_CONSUMER_NAME":
		return len(s.ConsumerName) <= 100 && strings.IndexFunc(s.ConsumerName, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
	case "SPILLWAY_START_TIMEOUT":
		return s.StartTimeout >= 0
	case "SPILLWAY_LOG_LEVEL":
		return slices.Contains([]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}, s.LogLevel)
	case "SPILLWAY_LOG_FORMAT":
		return s.LogFormat == "text" || s.LogFormat == "json"
	}
	return true
}

// checkDSN asks the store, which does not connect for that. Its error is not shown: what a parser says about a broken
// URL can quote a part of the password.
func checkDSN(dsn string) bool {
	store, err := persistence.Open(persistence.Config{DSN: dsn, Service: "settings"})
	if err != nil {
		return false
	}
	return store.Close() == nil
}

func (f field) wrong(value string) *retry.FieldError {
	if f.secret {
		value = mask.URL(value)
	}
	return retry.NewFieldError(f.name, value, f.allowed)
}
