package settings

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// clearEnv unsets every SPILLWAY_ variable for the length of the test.
func clearEnv(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, Prefix) {
			t.Setenv(name, "") // so that the old value comes back
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDefaults(t *testing.T) {
	clearEnv(t)
	t.Setenv("SPILLWAY_LEASE", "")    // set to nothing is not set
	t.Setenv("LOG_LEVEL", "nonsense") // not ours
	t.Setenv("SERVICE", "not-ours")   // not ours
	s, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		PostgresSchema: "spillway", PostgresMaxConns: 10, QueueKind: "quorum", Concurrency: 64, Lease: 30 * time.Second, Grace: 20 * time.Second,
		ScanInterval: 5 * time.Second, Retention: 168 * time.Hour, MaxPayload: 1 << 20, LogLevel: slog.LevelInfo, LogFormat: "text",
	}
	if s != want {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

func TestEveryDefaultIsAllowed(t *testing.T) {
	clearEnv(t)
	for _, e := range Describe() {
		if e.Meaning == "" || e.Allowed == "" || !strings.HasPrefix(e.Name, Prefix) || e.Set {
			t.Errorf("incomplete: %+v", e)
		}
		if e.Default != "" {
			t.Setenv(e.Name, e.Default)
		}
	}
	if _, err := Load(); err != nil {
		t.Error(err)
	}
}

func TestEveryBadValue(t *testing.T) {
	bad := map[string][]string{
		"SPILLWAY_SERVICE":            {"Orders", "a b", strings.Repeat("x", 64), "orders/2"},
		"SPILLWAY_POSTGRES_DSN":       {"postgres://u:p%zz@h/db", "nonsense", "postgres://u:p@h:port/db", "mysql://u:p@h/db"},
		"SPILLWAY_POSTGRES_SCHEMA":    {"pg_mine", "Drop Table", "1st"},
		"SPILLWAY_POSTGRES_MAX_CONNS": {"0", "-1", "many", "1.5", "100000"},
		"SPILLWAY_AMQP_URL":           {"http://u:p@h", "amqp://u:p@h:port/", "localhost:5672"},
		"SPILLWAY_MANAGEMENT_URL":     {"amqp://u:p@h", "localhost:15672", "http://"},
		"SPILLWAY_QUEUE_KIND":         {"stream", "Quorum"},
		"SPILLWAY_CONCURRENCY":        {"0", "x", "1000000"},
		"SPILLWAY_LEASE":              {"10", "0s", "-5s", "25h", "soon"},
		"SPILLWAY_GRACE":              {"-1s", "x"},
		"SPILLWAY_SCAN_INTERVAL":      {"0s", "1ms", "2h"},
		"SPILLWAY_RETENTION":          {"0s", "7d", "-1h"},
		"SPILLWAY_MAX_PAYLOAD":        {"0", "1MiB", "1000000000"},
		"SPILLWAY_CONSUMER_NAME":      {strings.Repeat("n", 101), "a\nb"},
		"SPILLWAY_START_TIMEOUT":      {"-1s", "never"},
		"SPILLWAY_LOG_LEVEL":          {"loud", "INFO+2"},
		"SPILLWAY_LOG_FORMAT":         {"xml", "JSON"},
	}
	for _, name := range Names() {
		if len(bad[name]) == 0 {
			t.Errorf("%s: no bad value is tested", name)
		}
		for _, value := range bad[name] {
			clearEnv(t)
			t.Setenv(name, value)
			_, err := Load()
			var se *Error
			if !errors.As(err, &se) || len(se.Problems) != 1 || se.Problems[0].Field != name || !errors.Is(err, retry.ErrInvalid) {
				t.Errorf("%s=%q: got %v", name, value, err)
				continue
			}
			if se.Problems[0].Allowed == "" {
				t.Errorf("%s: nothing says what is allowed", name)
			}
		}
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	clearEnv(t)
	t.Setenv("SPILLWAY_LEASE", "10")
	t.Setenv("SPILLWAY_POSTGRES_DSN", "postgres://u:hunter2@h:port/db")
	t.Setenv("SPILLWAY_AMQP_URL", "http://u:hunter2@h/")
	t.Setenv("SPILLWAY_CONCURRENCY", "9")
	s, err := Load("SPILLWAY_SERVICE", "SPILLWAY_CONCURRENCY", "SPILLWAY_AMQP_URL")
	if err == nil {
		t.Fatal("no error")
	}
	text := err.Error()
	for _, name := range []string{"SPILLWAY_SERVICE is not set: must be 1 to 63", "SPILLWAY_POSTGRES_DSN", "SPILLWAY_AMQP_URL", `SPILLWAY_LEASE: "10"`} {
		if !strings.Contains(text, name) {
			t.Errorf("%s is missing in: %s", name, text)
		}
	}
	if strings.Contains(text, "hunter2") {
		t.Errorf("password in: %s", text)
	}
	if n := strings.Count(text, "\n"); n != 4 {
		t.Errorf("%d problems, want 4: %s", n, text)
	}
	if s.Concurrency != 9 {
		t.Errorf("right settings are lost: %+v", s)
	}
}

func TestDescribeMasks(t *testing.T) {
	clearEnv(t)
	secrets := map[string]string{
		"SPILLWAY_POSTGRES_DSN":   "host=db user=u password=hunter2 dbname=x",
		"SPILLWAY_AMQP_URL":       "amqp://u:hunter2@h:5672/",
		"SPILLWAY_MANAGEMENT_URL": "http://u:hunter2@h:15672",
	}
	for k, v := range secrets {
		t.Setenv(k, v)
	}
	if _, err := Load(); err != nil {
		t.Error(err)
	}
	for _, e := range Describe() {
		if strings.Contains(e.Value, "hunter2") {
			t.Errorf("%s shows the password: %s", e.Name, e.Value)
		}
		if (secrets[e.Name] != "") != e.Set {
			t.Errorf("%s: set is %v", e.Name, e.Set)
		}
	}
}

func TestFindUnknown(t *testing.T) {
	got := FindUnknown([]string{
		"SPILLWAY_LEASE=1s", "SPILLWAY_LEESE=1s", "SPILLWAY_POSTGRES_URL=x", "SPILLWAY_XYZ=1", "PATH=/bin", "SPILLWAY_TASK_ID=4",
		"SPILLWAY_POSTGRES_DNS=x", "spillway_lease=1s",
	})
	want := []Unknown{{"SPILLWAY_LEESE", "SPILLWAY_LEASE"}, {"SPILLWAY_POSTGRES_DNS", "SPILLWAY_POSTGRES_DSN"},
		{"SPILLWAY_POSTGRES_URL", "SPILLWAY_POSTGRES_DSN"}, {"SPILLWAY_XYZ", ""}}
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got[i], want[i])
		}
	}
}
