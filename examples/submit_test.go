package examples_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// client is a program in another language.
type client struct {
	t       *testing.T
	service string
	env     []string
	command []string
}

// run returns what it printed on stdout.
func (c client) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.command[0], append(c.command[1:], args...)...)
	cmd.Env = append(append(os.Environ(), "SPILLWAY_SERVICE="+c.service), c.env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	c.t.Logf("%s: %s%s", filepath.Base(c.command[len(c.command)-1]), out, stderr.String())
	return strings.TrimSpace(string(out)) + stderr.String(), err
}

// library asks scripts/clients for what the client needs; without it the test is skipped.
func library(t *testing.T, language string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../scripts/clients", language)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("the example in %s is not run: %v: %s", language, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// The code in docs/submit.md is a piece of the programs that are run below.
func TestSubmitPage(t *testing.T) {
	page := read(t, "../docs/submit.md")
	for language, file := range map[string]string{"python": "submit/submit.py", "java": "submit/Submit.java"} {
		_, block, found := strings.Cut(page, "```"+language+"\n")
		block, _, _ = strings.Cut(block, "```")
		if !found || !strings.Contains(flat(read(t, file)), flat(block)) {
			t.Errorf("the %s in docs/submit.md is not in %s", language, file)
		}
	}
}

// Tasks come in from Python, as docs/submit.md says.
func TestSubmitFromPython(t *testing.T) {
	path := library(t, "python")
	service, store := newService(t)
	startConsumer(t, service)
	python := client{t: t, service: service, command: []string{"python3", "submit/submit.py"}}
	if path != "" {
		python.env = []string{"PYTHONPATH=" + path}
	}

	id, err := python.run("--scene", "mail.send", "--key", "from-python", "--delay", "100", "--deadline", "3600000", `{"to": "ü@example.com"}`)
	if err != nil {
		t.Fatal(err)
	}
	task := succeeded(t, store, "from-python")
	if string(task.Args) != `{"to": "\u00fc@example.com"}` || task.ContentType != "application/json" || task.DeadlineAt == nil || task.DeadlineAt.Sub(task.CreatedAt) > time.Hour {
		t.Errorf("stored %s, %+v", task.Args, task)
	}

	// The same message again, as after a lost confirm, and one more that is wrong, which comes after it.
	if _, err := python.run("--scene", "mail.send", "--key", "from-python", "--message-id", id, `{"to": "ü@example.com"}`); err != nil {
		t.Error(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a bad scene":     {[]string{"--scene", "Mail Send", `{}`}, "spillway-scene: scene: \"Mail Send\" is not allowed"},
		"a bad deadline":  {[]string{"--scene", "mail.send", "--delay", "5000", "--deadline", "5000", `{}`}, "spillway-deadline: 5000 is not allowed: must be above spillway-delay"},
		"the key is held": {[]string{"--scene", "mail.send", "--key", "from-python", `{"to": "somebody else"}`}, "key is held by a task with other arguments"},
	} {
		if _, err := python.run(tc.args...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		m := parked(t, service)
		if reason, _ := m.Headers["spillway-reason"].(string); !strings.Contains(reason, tc.want) || string(m.Body) != strings.Replace(tc.args[len(tc.args)-1], "ü", `\u00fc`, 1) {
			t.Errorf("%s: parked %s because: %s", name, m.Body, reason)
		}
	}
	list, err := store.List(t.Context(), persistence.Filter{})
	if err != nil || len(list) != 1 || list[0].Attempt != 1 {
		t.Errorf("%d tasks, %v; want the first alone, run once", len(list), err)
	}

	python.service = service + "-not"
	if out, err := python.run("--scene", "mail.send", `{}`); err == nil || !strings.Contains(out, "not accepted") {
		t.Errorf("to a service that is not there: %s, %v", out, err)
	}
}

func TestSubmitFromJava(t *testing.T) {
	path := library(t, "java")
	service, store := newService(t)
	startConsumer(t, service)
	java := client{t: t, service: service, command: []string{"java", "-cp", path, "submit/Submit.java"}}
	if _, err := java.run("mail.send", "from-java", `{"to": "anna@example.com"}`); err != nil {
		t.Fatal(err)
	}
	succeeded(t, store, "from-java")
	java.service = service + "-not"
	if out, err := java.run("mail.send", "k", `{}`); err == nil {
		t.Errorf("to a service that is not there: %s", out)
	}
}

func TestSubmitByRabbitmqadmin(t *testing.T) {
	for _, tool := range []string{"python3", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the example with rabbitmqadmin is not run: %v", err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, setting(t, "SPILLWAY_MANAGEMENT_URL")+"/cli/rabbitmqadmin", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		t.Skip("the example with rabbitmqadmin is not run: this broker does not hand it out")
	}
	service, store := newService(t)
	startConsumer(t, service)
	admin := client{t: t, service: service, command: []string{"bash", "submit/rabbitmqadmin.sh"}}
	if _, err := admin.run("mail.send", "from-rabbitmqadmin", `{"to": "anna@example.com"}`); err != nil {
		t.Fatal(err)
	}
	if task := succeeded(t, store, "from-rabbitmqadmin"); string(task.Args) != `{"to": "anna@example.com"}` {
		t.Errorf("stored %s", task.Args)
	}
	admin.service = service + "-not"
	if out, err := admin.run("mail.send", "k", `{}`); err == nil {
		t.Errorf("to a service that is not there: %s", out)
	}
}

// succeeded waits for the task with that key.
func succeeded(t *testing.T, store *persistence.Postgres, key string) (task retry.Task) {
	t.Helper()
	eventually(t, "the task "+key+" succeeds", func() bool {
		list, err := store.List(t.Context(), persistence.Filter{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || list[0].Status != retry.StatusSuccess {
			return false
		}
		task, err = store.Get(t.Context(), list[0].ID)
		return err == nil
	})
	return task
}

// parked takes the next message out of the parked queue.
func parked(t *testing.T, service string) (m amqp.Delivery) {
	t.Helper()
	conn, err := amqp.Dial(setting(t, "SPILLWAY_AMQP_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a message is parked", func() (ok bool) {
		if m, ok, err = ch.Get(topology.NamesOf(service).Parked(), true); err != nil {
			t.Fatal(err)
		}
		return ok
	})
	return m
}
