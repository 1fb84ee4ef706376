package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/internal/settings"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

func TestVersion(t *testing.T) {
	clearEnv(t)
	run(t, "version").want(t, exitOK, "retry-consumer ", "go ", fmt.Sprintf("schema         %d", persistence.SchemaVersion), "topology       v1")
	v := decode[map[string]any](t, run(t, "version", "--output", "json"))
	if v["schema"] != float64(persistence.SchemaVersion) || v["version"] == "" {
		t.Errorf("got %v", v)
	}
}

func TestUsageErrors(t *testing.T) {
	clearEnv(t)
	for _, tt := range []struct {
		args, want string
	}{
		{"", "name a command"},
		{"frob", `unknown command "frob"`},
		{"tasks", "name a command"},
		{"tasks frob", `unknown command "frob"`},
		{"version extra", `unknown command "extra"`},
		{"version --nope", "unknown flag: --nope"},
		{"version --output xml", `--output: "xml" is not allowed: must be table or json`},
		{"migrate down", "say --yes"},
		{"tasks show", "requires at least 1 arg"},
		{"tasks show abc", `task id: "abc" is not allowed`},
		{"tasks retry 1 -5", "unknown shorthand flag"},
		{"tasks retry 0", `task id: "0" is not allowed`},
		{"tasks list --state WAITING", `--state: "WAITING" is not allowed: must be one of INIT, WAIT, EXECUTING, SUCCESS, FAILED, MANUAL_REVIEW, CANCELLED`},
		{"tasks list --scene Bad", "--scene: scene:"},
		{"tasks list --older-than soon", "invalid argument"},
		{"tasks list --older-than -1s", "--older-than: -1s is not allowed"},
		{"tasks list --newer-than -1s", "--newer-than: -1s is not allowed"},
		{"tasks list --limit 0", "--limit: 0 is not allowed"},
		{"tasks list --before -3", "--before: -3 is not allowed"},
		{"tasks list --count --key x", "--count goes with"},
		{"tasks cancel 1 --by=", "--by: say who acts"},
		{"publish", "--scene: say which"},
		{"publish --scene a --data {", "--data: this is no JSON"},
		{"publish --scene a --data @/nonexistent", "no such file"},
		{"publish --scene a --header x", `--header: "x" is not allowed`},
		{"publish --scene a --content-type text/plain", `--content-type: "text/plain" is not allowed`},
		{"serve", "--scenes: name the file"},
		{"serve --scenes /nonexistent/scenes.yaml", "no such file"},
	} {
		r := run(t, strings.Fields(tt.args)...)
		if r.code != exitUsage || !strings.Contains(r.err, tt.want) {
			t.Errorf("%q: exit code %d: %s", tt.args, r.code, r.err)
		}
	}
}

func TestHelpNamesExitCodes(t *testing.T) {
	clearEnv(t)
	run(t, "--help").want(t, exitOK, "Exit codes:", "SPILLWAY_SERVICE", "  4    the database's schema")
	run(t, "serve", "--help").want(t, exitOK, "Idempotency-Key", "SPILLWAY_TASK_ID", "allow_hosts")
}

func TestBadSettings(t *testing.T) {
	clearEnv(t)
	t.Setenv("SPILLWAY_SERVICE", "Not A Service")
	t.Setenv("SPILLWAY_POSTGRES_DSN", "postgres://u:hunter2@h:port/db")
	t.Setenv("SPILLWAY_AMQP_URL", "amqp://u:hunter2@h:x/")
	t.Setenv("SPILLWAY_LEASE", "10")
	t.Setenv("SPILLWAY_LEESE", "10s")
	for _, args := range []string{"tasks list", "topology plan", "topology declare", "migrate up", "migrate status", "publish --scene a", "config"} {
		r := run(t, strings.Fields(args)...).want(t, exitUsage,
			"warning: SPILLWAY_LEESE is no setting (did you mean SPILLWAY_LEASE?)",
			`SPILLWAY_SERVICE: "Not A Service" is not allowed`, "SPILLWAY_POSTGRES_DSN", "SPILLWAY_AMQP_URL", `SPILLWAY_LEASE: "10" is not allowed`)
		if strings.Contains(r.out+r.err, "hunter2") {
			t.Errorf("%s shows a password: %s%s", args, r.out, r.err)
		}
	}
	clearEnv(t)
	run(t, "tasks", "list").want(t, exitUsage, "SPILLWAY_SERVICE is not set", "SPILLWAY_POSTGRES_DSN is not set: must be like postgres://user:password@host")
	run(t, "publish", "--scene", "a").want(t, exitUsage, "SPILLWAY_AMQP_URL is not set")
}

func TestConfig(t *testing.T) {
	clearEnv(t)
	t.Setenv("SPILLWAY_AMQP_URL", "amqp://u:hunter2@h/")
	r := run(t, "config").want(t, exitOK, append(settings.Names(), "amqp://u:***@h/", "(not set)", "(default)")...)
	if strings.Contains(r.out, "hunter2") {
		t.Error("the password is shown")
	}
	if list := decode[[]settings.Entry](t, run(t, "config", "-o", "json")); len(list) != len(settings.Names()) || !list[4].Set {
		t.Errorf("got %+v", list)
	}
}

func TestServeCheck(t *testing.T) {
	clearEnv(t)
	file := filepath.Join(t.TempDir(), "scenes.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("scenes:\n  - {name: a, handler: {exec: {command: [sh]}}}\n")
	run(t, "serve", "--check", "--scenes", file).want(t, exitOK, "1 scenes, nothing wrong")
	write("scenes:\n  - {name: A, handler: {exec: {command: [sh]}}}\n  - {nam: b}\n")
	run(t, "serve", "--scenes", file).want(t, exitUsage, file+`:2:12: scenes[0].name: "A": must be`, file+":3:6: scenes[1].nam: unknown field")
	for _, example := range []string{"scenes.yaml", "commands.yaml"} {
		run(t, "serve", "--check", "--scenes", filepath.Join("../../examples/serve", example)).want(t, exitOK)
	}
}

// freePort returns an address on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// with returns an address with its host or password replaced.
func with(t *testing.T, address, host, password string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		u.Host = host
	}
	if password != "" {
		u.User = url.UserPassword(u.User.Username(), password)
	}
	return u.String()
}

func TestUnreachable(t *testing.T) {
	servers(t)
	dsn, broker := os.Getenv(varDSN), os.Getenv(varAMQP)
	t.Setenv(varDSN, with(t, dsn, freePort(t), "hunter2"))
	for _, args := range []string{"tasks list", "migrate up", "migrate status", "publish --scene a", "tasks retry 1"} {
		r := run(t, strings.Fields(args)...).want(t, exitUnreachable, "refused", varDSN)
		if strings.Contains(r.err, "hunter2") {
			t.Errorf("%s shows a password: %s", args, r.err)
		}
	}
	t.Setenv(varDSN, dsn)
	t.Setenv(varAMQP, with(t, broker, freePort(t), "hunter2"))
	for _, args := range []string{"topology declare", "topology verify"} {
		run(t, strings.Fields(args)...).want(t, exitUnreachable, "refused", varAMQP)
	}
}

func TestRefusedLogin(t *testing.T) {
	servers(t)
	dsn, broker := os.Getenv(varDSN), os.Getenv(varAMQP)
	t.Setenv(varDSN, with(t, dsn, "", "hunter2"))
	r := run(t, "tasks", "list").want(t, exitUsage, varDSN)
	t.Setenv(varDSN, dsn)
	t.Setenv(varAMQP, with(t, broker, "", "hunter2"))
	r2 := run(t, "topology", "declare").want(t, exitUsage, varAMQP)
	if strings.Contains(r.err+r2.err, "hunter2") {
		t.Errorf("a password in %s%s", r.err, r2.err)
	}
}

func TestMigrate(t *testing.T) {
	servers(t)
	// Nothing there yet: everything that needs the schema says so.
	for _, args := range []string{"tasks list", "tasks show 1", "tasks cancel 1", "publish --scene a"} {
		run(t, strings.Fields(args)...).want(t, exitSchema, "at version 0", "migrate up")
	}
	run(t, "migrate", "status").want(t, exitOK, "0001_init.sql", "pending")
	run(t, "migrate", "up").want(t, exitOK, "applied 0001_init.sql", fmt.Sprintf("is at version %d", persistence.SchemaVersion))
	run(t, "migrate", "up").want(t, exitOK, "is at version")
	if list := decode[[]persistence.Migration](t, run(t, "migrate", "status", "-o", "json")); len(list) != persistence.SchemaVersion || !list[0].Applied {
		t.Errorf("got %+v", list)
	}
	run(t, "tasks", "list").want(t, exitOK, "ID")
	for range persistence.SchemaVersion {
		run(t, "migrate", "down", "--yes").want(t, exitOK, "took back")
	}
	run(t, "migrate", "down", "--yes").want(t, exitOK, "nothing to take back")
	run(t, "tasks", "list").want(t, exitSchema)

	schema := os.Getenv("SPILLWAY_POSTGRES_SCHEMA")
	run(t, "migrate", "print").want(t, exitOK, "CREATE SCHEMA IF NOT EXISTS "+schema, "CREATE TABLE "+schema+".task")
	run(t, "migrate", "print", "--down").want(t, exitOK, "DROP TABLE "+schema+".task")
}

func TestTopology(t *testing.T) {
	servers(t)
	service := os.Getenv(varService)
	run(t, "topology", "plan").want(t, exitOK, "spillway.v1."+service+".ready")
	if plan := decode[topology.Plan](t, run(t, "topology", "plan", "-o", "json")); len(plan.Queues) == 0 || plan.Service != service {
		t.Errorf("got %+v", plan)
	}
	run(t, "topology", "verify").want(t, exitFailed, "missing", "fix: ")
	run(t, "topology", "declare").want(t, exitOK, "are there")
	run(t, "topology", "declare").want(t, exitOK, "are there")
	run(t, "topology", "verify").want(t, exitOK, "is as planned")
	if r := run(t, "topology", "verify", "-o", "json").want(t, exitOK); strings.TrimSpace(r.out) != "[]" {
		t.Errorf("got %s", r.out)
	}
	// Without the management API something stays unseen, which is not a difference.
	t.Setenv("SPILLWAY_MANAGEMENT_URL", "")
	run(t, "topology", "verify").want(t, exitOK, "is as planned", "unchecked")
	t.Setenv("SPILLWAY_QUEUE_KIND", "classic")
	run(t, "topology", "verify").want(t, exitFailed, "fix: ")
	run(t, "topology", "declare").want(t, exitFailed, "x-queue-type")
}

func publishTask(t *testing.T, args ...string) int64 {
	t.Helper()
	r := run(t, append([]string{"publish", "-o", "json"}, args...)...).want(t, exitOK)
	return decode[published](t, r).ID
}

func TestPublishWithScenes(t *testing.T) {
	servers(t)
	run(t, "migrate", "up").want(t, exitOK)
	run(t, "topology", "declare").want(t, exitOK)
	scenes := filepath.Join(t.TempDir(), "scenes.yaml")
	if err := os.WriteFile(scenes, []byte("scenes: [{name: short, policy: {kind: FIXED, max_attempts: 2, deadline: 90s}, handler: {exec: {command: [sh]}}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	short := task(t, publishTask(t, "--scenes", scenes, "--scene", "short"))
	if got := short.DeadlineAt.Sub(short.CreatedAt); got != 90*time.Second {
		t.Errorf("deadline %v after creation, want the scene's", got)
	}
	run(t, "publish", "--scenes", scenes, "--scene", "mail.send").want(t, exitUsage, "short")
}

func TestTasks(t *testing.T) {
	servers(t)
	run(t, "migrate", "up").want(t, exitOK)
	run(t, "topology", "declare").want(t, exitOK)
	t.Setenv("USER", "ada")

	mail := publishTask(t, "--scene", "mail.send", "--key", "m 1", "--data", `{"to": "a@example.com"}`, "--delay", "1h", "--deadline", "3h",
		"--workflow", "w1", "--header", "trace=abc=d")
	if again := publishTask(t, "--scene", "mail.send", "--key", "m 1", "--data", `{"to": "a@example.com"}`, "--delay", "1h"); again != mail {
		t.Errorf("the same key made task %d beside %d", again, mail)
	}
	run(t, "publish", "--scene", "mail.send", "--key", "m 1", "--data", `{}`).want(t, exitFailed, "other arguments", fmt.Sprintf("task %d", mail))
	run(t, "publish", "--scene", "mail.send", "--delay", "-1s").want(t, exitUsage, "delay")
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, []byte{0, 1, 2}, 0o600); err != nil {
		t.Fatal(err)
	}
	image := publishTask(t, "--scene", "image.resize", "--content-type", "application/octet-stream", "--data", "@"+file, "--delay", "2h")
	piped := decode[published](t, runIn(t, `{"n": 5}`, "publish", "--scene", "mail.send", "--data", "-", "--delay", "1h", "-o", "json").want(t, exitOK))
	if !piped.Created || piped.State != retry.StatusWait {
		t.Errorf("got %+v", piped)
	}
	run(t, "publish", "--scene", "mail.send", "--key", "m 1", "--data", `{"to": "a@example.com"}`).want(t, exitOK, fmt.Sprintf("task %d: WAIT (it was there before)", mail))
	t.Setenv("SPILLWAY_MAX_PAYLOAD", "10")
	run(t, "publish", "--scene", "mail.send", "--data", `{"to": "somebody"}`).want(t, exitUsage, "at most 10 bytes")
	t.Setenv("SPILLWAY_MAX_PAYLOAD", "")

	list := func(args ...string) (ids []int64) {
		t.Helper()
		for _, task := range decode[[]retry.Task](t, run(t, append([]string{"tasks", "list", "-o", "json"}, args...)...).want(t, exitOK)) {
			ids = append(ids, task.ID)
		}
		return ids
	}
	for _, tt := range []struct {
		args string
		want []int64
	}{
		{"", []int64{piped.ID, image, mail}},
		{"--scene mail.send", []int64{piped.ID, mail}},
		{"--scene mail.send,image.resize --limit 2", []int64{piped.ID, image}},
		{"--before " + strconv.FormatInt(image, 10), []int64{mail}},
		{"--state wait", []int64{piped.ID, image, mail}},
		{"--state SUCCESS --state manual-review", nil},
		{"--workflow w1", []int64{mail}},
		{"--key none", nil},
		{"--older-than 1h", nil},
		{"--newer-than 1h", []int64{piped.ID, image, mail}},
	} {
		if got := list(strings.Fields(tt.args)...); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: got %v, want %v", tt.args, got, tt.want)
		}
	}
	if got := list("--key", "m 1"); fmt.Sprint(got) != fmt.Sprint([]int64{mail}) {
		t.Errorf("by key: %v", got)
	}
	run(t, "tasks", "list").want(t, exitOK, "image.resize", "in 1h59m")
	run(t, "tasks", "list", "--count").want(t, exitOK, "image.resize", "(all)")
	counts := decode[[]persistence.Count](t, run(t, "tasks", "list", "--count", "--scene", "mail.send", "-o", "json"))
	if len(counts) != 1 || counts[0].Tasks != 2 || counts[0].Status != retry.StatusWait {
		t.Errorf("got %+v", counts)
	}

	run(t, "tasks", "show", fmt.Sprint(mail)).want(t, exitOK,
		fmt.Sprintf("task %d of service %s", mail, os.Getenv(varService)), "m 1", "WAIT, in ", "workflow     w1", "trace: abc=d", `application/json, 23 bytes: {"to":"a@example.com"}`, "timeline")
	both := run(t, "tasks", "show", fmt.Sprint(mail), fmt.Sprint(image), "-o", "json").want(t, exitOK)
	shown := decode[[]map[string]any](t, both)
	if len(shown) != 2 || shown[1]["arguments_base64"] != "AAEC" || shown[0]["arguments"] == nil {
		t.Errorf("got %s", both.out)
	}
	run(t, "tasks", "show", fmt.Sprint(mail), "999999").want(t, exitFailed, "m 1", "not found", "999999")

	// A person's hand. One that is refused does not keep the others from being done.
	ids := []string{fmt.Sprint(mail), "999999", fmt.Sprint(image)}
	run(t, append([]string{"tasks", "cancel", "--note", "not wanted"}, ids...)...).want(t, exitFailed,
		fmt.Sprintf("%d: CANCELLED", mail), "999999: not done", fmt.Sprintf("%d: CANCELLED", image))
	refused := run(t, "tasks", "cancel", ids[0], "-o", "json").want(t, exitFailed)
	if r := decode[[]operated](t, refused); len(r) != 1 || r[0].OK || !strings.Contains(r[0].Error, "it is CANCELLED") {
		t.Errorf("got %+v", r)
	}
	run(t, "tasks", "show", ids[0]).want(t, exitOK, "CANCELLED", "ended as CANCELLED by ada; was WAIT (not wanted)")
	run(t, "tasks", "retry", "--by", "bob", ids[0]).want(t, exitOK, ids[0]+": WAIT")
	run(t, "tasks", "show", ids[0]).want(t, exitOK, "due since", "made due now by bob; was CANCELLED")
	run(t, "tasks", "fail", ids[0]).want(t, exitOK, ids[0]+": FAILED")
	run(t, "tasks", "succeed", ids[0]).want(t, exitOK, ids[0]+": SUCCESS")
	run(t, "tasks", "retry", ids[0]).want(t, exitFailed, "it is SUCCESS")

	// Without a broker the database still does what was asked; only the wake-up is left to the scan.
	t.Setenv(varAMQP, with(t, os.Getenv(varAMQP), freePort(t), ""))
	run(t, "tasks", "retry", ids[2]).want(t, exitOK, ids[2]+": WAIT", "the scan will ")
	run(t, "publish", "--scene", "mail.send", "--key", "late").want(t, exitOK, "WAIT", "the scan will ")
}

func TestShownTaskJSON(t *testing.T) {
	// The task's own fields stay at the top.
	b, err := json.Marshal(shown(retry.Task{ID: 7, Args: []byte("{}")}, nil))
	if err != nil || !strings.Contains(string(b), `"id":7`) || !strings.Contains(string(b), `"arguments":{}`) || !strings.Contains(string(b), `"journal":[]`) {
		t.Errorf("%s %v", b, err)
	}
}
