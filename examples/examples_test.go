package examples_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// The quickstart as a reader follows it: the consumer runs, the publisher hands a task over, the task succeeds.
func TestQuickstart(t *testing.T) {
	service, store := newService(t)
	publish := build(t, "publish")
	c, logged, ended := startConsumer(t, service)

	out, err := command(t, service, publish).CombinedOutput()
	if err != nil {
		t.Fatalf("publish: %v\n%s", err, out)
	}
	_, after, ok := strings.Cut(string(out), "task ")
	number, state, _ := strings.Cut(strings.TrimSpace(after), ": ")
	id, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || state != "WAIT" {
		t.Fatalf("publish printed %q", out)
	}
	var task retry.Task
	eventually(t, "the task succeeds", func() bool {
		if task, err = store.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return task.Status == retry.StatusSuccess
	})
	if task.Attempt != 1 {
		t.Errorf("attempts = %d, want 1", task.Attempt)
	}
	if want := "mail to anna@example.com: attempt 1, key " + service + "/mail.send/welcome-anna"; !strings.Contains(logged.String(), want) {
		t.Errorf("the consumer logged %q, want %q in it", logged.String(), want)
	}

	// The same key and arguments again: the same task, and no second mail.
	if out, err = command(t, service, publish).CombinedOutput(); err != nil || !strings.Contains(string(out), fmt.Sprintf("task %d: SUCCESS", id)) {
		t.Errorf("publish again: %v\n%s", err, out)
	}

	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("consumer after SIGTERM: %v\n%s", err, logged.String())
		}
	case <-time.After(30 * time.Second):
		t.Errorf("the consumer does not end after SIGTERM:\n%s", logged.String())
	}
}

// What the README says of Do: it calls at once, and what keeps failing is remembered.
func TestDo(t *testing.T) {
	service, store := newService(t)
	scene := retry.Scene{Name: "payment.refund", Unknown: retry.UnknownRepeat, Local: retry.Local{Pause: time.Millisecond}}
	pub, err := publisher.New(publisher.Config{Service: service, Store: store, AMQPURL: setting(t, "SPILLWAY_AMQP_URL"), Scenes: []retry.Scene{scene}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = pub.Close(ctx)
	}()
	calls := 0
	callBank := func(context.Context) error { calls++; return errors.New("bank says 503") }
	refund := func(ctx context.Context) (string, error) {
		task := publisher.Task{Scene: "payment.refund", Key: "order-7", Args: map[string]int{"cents": 4200}}
		err := pub.Do(ctx, task, callBank)
		switch {
		case err == nil:
			return "refunded", nil // nothing was stored
		case errors.Is(err, retry.ErrEscalated):
			return "will be refunded", nil // stored; the service's consumers go on with it
		default:
			return "", err // permanent, or it could not be stored: yours again
		}
	}
	if said, err := refund(t.Context()); err != nil || said != "will be refunded" || calls != 3 {
		t.Errorf("refund = %q, %v after %d calls; want it to be remembered after 3", said, err, calls)
	}
	tasks, err := store.List(t.Context(), persistence.Filter{Key: "order-7"})
	if err != nil || len(tasks) != 1 || tasks[0].Status != retry.StatusWait {
		t.Errorf("tasks = %+v, %v; want one that waits", tasks, err)
	}
}

// startConsumer runs the example consume until the test ends, and waits until it reads its queue.
func startConsumer(t *testing.T, service string) (c *exec.Cmd, logged *output, ended chan error) {
	t.Helper()
	logged = &output{}
	c = command(t, service, build(t, "consume"))
	c.Stderr = logged
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	gone := make(chan struct{})
	go func() { ended <- c.Wait(); close(gone) }() // ends with the process, which the cleanup ends at the latest
	t.Cleanup(func() { _ = c.Process.Kill(); <-gone })
	eventually(t, "the consumer reads its queue", func() bool { return strings.Contains(logged.String(), "consuming") })
	return c, logged, ended
}

// newService returns a service of its own, whose rows and queues are removed when the test ends. The tables are in the
// default schema, as they are for a reader.
func newService(t *testing.T) (string, *persistence.Postgres) {
	t.Helper()
	dsn, service := setting(t, "SPILLWAY_POSTGRES_DSN"), "t-examples-"+uuid.NewString()[:8]
	m, err := persistence.NewMigrator(dsn, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	store, err := persistence.Open(persistence.Config{DSN: dsn, Service: service})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		schema := persistence.DefaultSchema
		for _, stmt := range []string{
			`DELETE FROM ` + schema + `.retry_event WHERE task_id IN (SELECT id FROM ` + schema + `.task WHERE service = $1)`,
			`DELETE FROM ` + schema + `.task WHERE service = $1`,
			`DELETE FROM ` + schema + `.policy WHERE service = $1`,
			`DELETE FROM ` + schema + `.submission WHERE service = $1`,
			`DELETE FROM ` + schema + `.reaper WHERE service = $1`,
		} {
			if _, err := store.DB().ExecContext(ctx, stmt, service); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
		_ = store.Close()
		conn, err := amqp.Dial(setting(t, "SPILLWAY_AMQP_URL"))
		if err != nil {
			t.Errorf("clean up: %v", err)
			return
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) }()
		if err := topology.Delete(ctx, conn, topology.Config{Service: service}); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return service, store
}

func setting(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf(`%s is not set: run make test, or: scripts/services up && eval "$(scripts/services env)"`, name)
	}
	return value
}

func build(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return file
}

// command is not tied to t's context, which is over before cleanups run.
func command(t *testing.T, service, file string) *exec.Cmd {
	t.Helper()
	c := exec.Command(file)
	c.Env = append(os.Environ(), "SPILLWAY_SERVICE="+service)
	return c
}

// output is written by a process and read by a test.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String is all that was written so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// The bank pays once although its answer gets lost, and the journal says why nothing was redone.
func TestRefund(t *testing.T) {
	service, store := newService(t)
	out, err := command(t, service, build(t, "refund")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "the bank paid 1250 once") || !strings.Contains(string(out), "goes on with it, because: connection reset") {
		t.Fatalf("%v\n%s", err, out)
	}
	list, err := store.List(t.Context(), persistence.Filter{})
	if err != nil || len(list) != 1 || list[0].Status != retry.StatusSuccess || list[0].Phase != retry.PhaseCallback {
		t.Fatalf("%+v, %v", list, err)
	}
	events, err := store.Events(t.Context(), list[0].ID)
	if err != nil || len(events) < 2 || events[1].Reason != retry.ReasonTookEffect {
		t.Errorf("%+v, %v", events, err)
	}
}
