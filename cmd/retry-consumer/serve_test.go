package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// server is a serve that runs within the test.
type server struct {
	out, err *buffer
	stop     context.CancelFunc
	done     chan int
}

func startServe(t *testing.T, scenes string, args ...string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scenes.yaml")
	if err := os.WriteFile(file, []byte(scenes), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &server{out: &buffer{}, err: &buffer{}, stop: cancel, done: make(chan int, 1)}
	a := &app{in: strings.NewReader(""), out: s.out, err: s.err, environ: os.Environ()}
	var running sync.WaitGroup
	running.Go(func() { s.done <- a.run(ctx, append([]string{"serve", "--scenes", file}, args...)) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if t.Failed() {
			t.Logf("serve said:\n%s%s", s.out, s.err)
		}
	})
	return s
}

// stopped asks serve to stop and returns its exit code.
func (s *server) stopped(t *testing.T) int {
	t.Helper()
	s.stop()
	return s.ended(t)
}

func (s *server) ended(t *testing.T) int {
	t.Helper()
	select {
	case code := <-s.done:
		return code
	case <-time.After(time.Minute):
		t.Fatal("serve does not end")
		return -1
	}
}

func task(t *testing.T, id int64) retry.Task {
	t.Helper()
	list := decode[[]shownTask](t, run(t, "tasks", "show", "-o", "json", fmt.Sprint(id)).want(t, exitOK))
	return list[0].Task
}

func waitState(t *testing.T, id int64, state retry.Status) retry.Task {
	t.Helper()
	var last retry.Task
	waitFor(t, fmt.Sprintf("task %d in %s", id, state), func() bool {
		last = task(t, id)
		return last.Status == state
	})
	return last
}

func TestServeExec(t *testing.T) {
	servers(t)
	s := startServe(t, `
scenes:
  - name: report.print
    policy: {kind: FIXED, base: 100ms, max_attempts: 3}
    handler:
      exec:
        command: [sh, -c, 'cat; echo " attempt $SPILLWAY_ATTEMPT of $SPILLWAY_IDEMPOTENCY_KEY"; if [ "$SPILLWAY_ATTEMPT" = 1 ]; then echo warming up >&2; exit 75; fi']
  - name: report.refuse
    handler: {exec: {command: [sh, -c, "echo never >&2; exit 65"]}}
    exit_codes: {65: permanent}
  - name: report.crash
    handler: {exec: {command: [sh, -c, "exit 1"]}}
`, "--migrate")
	waitFor(t, "first log line", func() bool { return strings.Contains(s.err.String(), "msg=serving") })
	if !strings.Contains(s.err.String(), "report.print (exec /") {
		t.Errorf("it does not say what it serves: %s", s.err)
	}
	printed := publishTask(t, "--scene", "report.print", "--key", "june", "--data", `{"month":"june"}`)
	refused := publishTask(t, "--scene", "report.refuse")
	crashed := publishTask(t, "--scene", "report.crash")
	unknown := publishTask(t, "--scene", "not.known")

	if got := waitState(t, printed, retry.StatusSuccess); got.Attempt != 2 {
		t.Errorf("got %+v", got)
	}
	want := fmt.Sprintf(`{"month":"june"} attempt 2 of %s/report.print/june`, os.Getenv(varService))
	if !strings.Contains(s.out.String(), want) {
		t.Errorf("%q is missing in %s", want, s.out)
	}
	run(t, "tasks", "show", fmt.Sprint(printed)).want(t, exitOK, "SUCCESS", "attempt 1 failed (transient)", "warming up", "tries again in ", "attempt 2 succeeded")
	if got := waitState(t, refused, retry.StatusFailed); got.StopReason != retry.ReasonFailPermanent || !strings.Contains(got.LastError, "exit status 65: never") {
		t.Errorf("got %+v", got)
	}
	if got := waitState(t, crashed, retry.StatusManualReview); got.StopReason != retry.ReasonManualReview || !got.Unknown {
		t.Errorf("got %+v", got)
	}
	// A person looked at it and says that it was done.
	run(t, "tasks", "succeed", fmt.Sprint(crashed), "--by", "ada").want(t, exitOK, "SUCCESS")
	if got := task(t, unknown); got.Status != retry.StatusWait {
		t.Errorf("a task of an unknown scene is %s", got.Status)
	}
	// A retry is run at once, by the wake-up that the command publishes.
	run(t, "tasks", "retry", fmt.Sprint(refused)).want(t, exitOK, "WAIT")
	waitState(t, refused, retry.StatusFailed)
	if code := s.stopped(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestServeHTTP(t *testing.T) {
	servers(t)
	var calls atomic.Int32
	downstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("Idempotency-Key") != os.Getenv(varService)+"/payment.refund/r-1" || r.Header.Get("Spillway-Deadline") == "" {
			t.Errorf("headers %v", r.Header)
		}
		if n := calls.Add(1); n == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer downstream.Close()
	s := startServe(t, fmt.Sprintf("scenes:\n  - {name: payment.refund, policy: {base: 100ms}, handler: {http: {url: '%s/x'}}}\n", downstream.URL), "--migrate")
	waitFor(t, "first log line", func() bool { return strings.Contains(s.err.String(), "msg=serving") })
	id := publishTask(t, "--scene", "payment.refund", "--key", "r-1", "--data", `{"cents":5}`)
	if got := waitState(t, id, retry.StatusSuccess); got.Attempt != 2 || calls.Load() != 2 {
		t.Errorf("%d calls, %+v", calls.Load(), got)
	}
	run(t, "tasks", "show", fmt.Sprint(id)).want(t, exitOK, "status 503", "asked to wait 1s")
	if code := s.stopped(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

const oneScene = "scenes:\n  - {name: a, handler: {exec: {command: [sh, -c, 'exit 0']}}}\n"

func TestServeOldSchema(t *testing.T) {
	servers(t)
	s := startServe(t, oneScene)
	if code := s.ended(t); code != exitSchema || !strings.Contains(s.err.String(), "migrate up") {
		t.Errorf("exit code %d: %s", code, s.err)
	}
}

func TestServeBadLogin(t *testing.T) {
	servers(t)
	dsn, broker := os.Getenv(varDSN), os.Getenv(varAMQP)
	t.Setenv(varDSN, with(t, dsn, "", "hunter2"))
	s := startServe(t, oneScene, "--migrate")
	if code := s.ended(t); code != exitUsage || !strings.Contains(s.err.String(), varDSN) {
		t.Errorf("exit code %d: %s", code, s.err)
	}
	t.Setenv(varDSN, dsn)
	t.Setenv(varAMQP, with(t, broker, "", "hunter2"))
	s2 := startServe(t, oneScene, "--migrate")
	if code := s2.ended(t); code != exitUsage || !strings.Contains(s2.err.String(), varAMQP) {
		t.Errorf("exit code %d: %s", code, s2.err)
	}
	if strings.Contains(s.err.String()+s2.err.String(), "hunter2") {
		t.Error("a password is shown")
	}
}

func TestServeGivesUpWaiting(t *testing.T) {
	servers(t)
	dsn, broker := os.Getenv(varDSN), os.Getenv(varAMQP)
	t.Setenv("SPILLWAY_START_TIMEOUT", "3s")
	t.Setenv(varDSN, with(t, dsn, freePort(t), ""))
	s := startServe(t, oneScene, "--migrate")
	if code := s.ended(t); code != exitUnreachable || !strings.Contains(s.err.String(), "waiting for postgres") || !strings.Contains(s.err.String(), "within 3s (SPILLWAY_START_TIMEOUT)") {
		t.Errorf("exit code %d: %s", code, s.err)
	}
	t.Setenv(varDSN, dsn)
	t.Setenv(varAMQP, with(t, broker, freePort(t), ""))
	s = startServe(t, oneScene, "--migrate")
	if code := s.ended(t); code != exitUnreachable || !strings.Contains(s.err.String(), "waiting for rabbitmq") {
		t.Errorf("exit code %d: %s", code, s.err)
	}
}

// forward passes connections to address on to target until stop.
func forward(t *testing.T, address, target string) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			open = append(open, in, out)
			mu.Unlock()
			running.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			running.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	return func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	}
}

func TestServeWaitsForServers(t *testing.T) {
	servers(t)
	run(t, "migrate", "up").want(t, exitOK)
	dsn, broker := os.Getenv(varDSN), os.Getenv(varAMQP)
	dbAt, mqAt := freePort(t), freePort(t)
	t.Setenv(varDSN, with(t, dsn, dbAt, ""))
	t.Setenv(varAMQP, with(t, broker, mqAt, ""))
	s := startServe(t, oneScene)
	waitFor(t, "word that it waits for postgres", func() bool { return strings.Contains(s.err.String(), "waiting for postgres") })
	defer forward(t, dbAt, hostOf(t, dsn))()
	waitFor(t, "word that it waits for rabbitmq", func() bool { return strings.Contains(s.err.String(), "waiting for rabbitmq") })
	if !strings.Contains(s.err.String(), "postgres answers") || !strings.Contains(s.err.String(), `waits="for ever"`) {
		t.Errorf("got %s", s.err)
	}
	defer forward(t, mqAt, hostOf(t, broker))()
	waitFor(t, "first log line", func() bool { return strings.Contains(s.err.String(), "msg=serving") })
	if code := s.stopped(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestServeStopsWhileWaiting(t *testing.T) {
	servers(t)
	t.Setenv(varDSN, with(t, os.Getenv(varDSN), freePort(t), ""))
	s := startServe(t, oneScene)
	waitFor(t, "word that it waits", func() bool { return strings.Contains(s.err.String(), "waiting for postgres") })
	if code := s.stopped(t); code != exitOK {
		t.Errorf("exit code %d: %s", code, s.err)
	}
}

// TestServeSignals runs the program itself: the first SIGTERM lets what runs finish, a second one does not.
func TestServeSignals(t *testing.T) {
	servers(t)
	run(t, "migrate", "up").want(t, exitOK)
	dir := t.TempDir()
	scenes := filepath.Join(dir, "scenes.yaml")
	// The command says that it began and then waits for the test's word.
	text := "scenes:\n  - name: a\n    handler:\n      exec:\n        command: [sh, -c, 'echo $$ >began; while [ ! -e go ]; do sleep 0.05; done']\n"
	if err := os.WriteFile(scenes, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	start := func() (*exec.Cmd, *buffer) {
		t.Helper()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		errOut := &buffer{}
		cmd := exec.Command(self, "serve", "--scenes", scenes)
		cmd.Env = append(os.Environ(), runAsProgram+"=1")
		cmd.Stderr = errOut
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it has ended, unless the test failed
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("serve said:\n%s", errOut)
			}
		})
		return cmd, errOut
	}
	signal := func(cmd *exec.Cmd) {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}

	cmd, _ := start()
	id := publishTask(t, "--scene", "a")
	waitFor(t, "start of the command", func() bool { return exists("began") })
	signal(cmd)
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after one signal: %v", err)
	}
	if got := task(t, id); got.Status != retry.StatusSuccess {
		t.Errorf("what ran was not finished: %+v", got)
	}

	for _, name := range []string{"began", "go"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd, errOut := start()
	publishTask(t, "--scene", "a")
	waitFor(t, "start of the command", func() bool { return exists("began") })
	signal(cmd)
	// Again and again: what comes right behind the first one counts as the same.
	waitFor(t, "end by a second signal", func() bool {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return strings.Contains(errOut.String(), "exiting at once")
	})
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("after two signals: exit code %d", code)
	}
	// The command must not run on beside the task's next attempt.
	b, err := os.ReadFile(filepath.Join(dir, "began"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "end of the command", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	rest := address[strings.Index(address, "://")+3:]
	rest = rest[strings.LastIndex(rest, "@")+1:]
	host, _, _ := strings.Cut(rest, "/")
	return host
}
