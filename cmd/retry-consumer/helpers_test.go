package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/topology"
)

// runAsProgram makes the test binary the program itself, for tests of signals and processes.
const runAsProgram = "RETRY_CONSUMER_TEST_RUNS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(runAsProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// buffer may be written and read concurrently.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

type result struct {
	code     int
	out, err string
}

// run runs a command line within the test.
func run(t *testing.T, args ...string) result { return runIn(t, "", args...) }

func runIn(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errOut buffer
	a := &app{in: strings.NewReader(stdin), out: &out, err: &errOut, environ: os.Environ()}
	code := a.run(t.Context(), args)
	return result{code, out.String(), errOut.String()}
}

// want fails the test unless a command ended with a code and its output holds the texts.
func (r result) want(t *testing.T, code int, texts ...string) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.err, text) {
			t.Errorf("%q is missing in:\n%s%s", text, r.out, r.err)
		}
	}
	return r
}

func decode[T any](t *testing.T, r result) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(r.out), &v); err != nil {
		t.Fatalf("%v in:\n%s%s", err, r.out, r.err)
	}
	return v
}

func clearEnv(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, settings.Prefix) {
			t.Setenv(name, "") // so that the old value comes back
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// servers sets the environment for a service and a schema of the test's own, and removes what it made.
func servers(t *testing.T) {
	t.Helper()
	dsn, url, management := os.Getenv(varDSN), os.Getenv(varAMQP), os.Getenv("SPILLWAY_MANAGEMENT_URL")
	if dsn == "" || url == "" {
		t.Fatalf("%s and %s are not set: run `scripts/services up` and `eval \"$(scripts/services env)\"`", varDSN, varAMQP)
	}
	b := make([]byte, 5)
	_, _ = rand.Read(b)
	service, schema := "cli-"+hex.EncodeToString(b), "cli_"+hex.EncodeToString(b)
	clearEnv(t)
	for name, value := range map[string]string{
		varService: service, varDSN: dsn, varAMQP: url, "SPILLWAY_MANAGEMENT_URL": management, "SPILLWAY_POSTGRES_SCHEMA": schema,
	} {
		t.Setenv(name, value)
	}
	t.Cleanup(func() {
		db, err := sqlx.Open("postgres", dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		if _, err := db.Exec("DROP SCHEMA IF EXISTS " + schema + " CASCADE"); err != nil {
			t.Error(err)
		}
		conn, err := amqp.Dial(url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := topology.Delete(ctx, conn, topology.Config{Service: service}); err != nil {
			t.Error(err)
		}
	})
}

// waitFor polls a condition that another process or goroutine brings about.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatalf("no %s within a minute", what)
		}
	}
}
