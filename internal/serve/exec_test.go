package serve

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

func execScene(unknown retry.UnknownMode, command ...string) Scene {
	return Scene{
		Scene:   retry.Scene{Name: "payment.refund", Unknown: unknown, Classify: retry.ClassifyNet},
		Program: Program{Exec: &Exec{Command: command, ExitCodes: map[int]retry.Class{65: retry.ClassPermanent, 3: retry.ClassTransient, 4: retry.ClassUnknown}}},
	}
}

func runExec(t *testing.T, s Scene, opts Options) (retry.Class, error) {
	t.Helper()
	opts.Environ = append(opts.Environ, "PATH="+os.Getenv("PATH"))
	_, err := newExecRunner(*s.Exec, stepExecute, opts).run(t.Context(), call())
	return s.ClassOf(err), err
}

func TestExecExitCodes(t *testing.T) {
	for script, want := range map[string][2]retry.Class{
		"exit 0":        {retry.ClassNone, retry.ClassNone},
		"exit 75":       {retry.ClassTransient, retry.ClassTransient},
		"exit 65":       {retry.ClassPermanent, retry.ClassPermanent},
		"exit 3":        {retry.ClassTransient, retry.ClassTransient},
		"exit 4":        {retry.ClassUnknown, retry.ClassUnknown},
		"exit 1":        {retry.ClassUnknown, retry.ClassTransient}, // as the scene says
		"kill -9 $$":    {retry.ClassUnknown, retry.ClassTransient},
		"exec nonesuch": {retry.ClassUnknown, retry.ClassTransient}, // 127, from the shell
	} {
		for i, mode := range []retry.UnknownMode{retry.UnknownReview, retry.UnknownRepeat} {
			class, err := runExec(t, execScene(mode, "/bin/sh", "-c", script), Options{})
			if class != want[i] {
				t.Errorf("%s with %s: got %s, want %s (%v)", script, mode, class, want[i], err)
			}
		}
	}
}

func TestExecInput(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	s := execScene(retry.UnknownReview, "/bin/sh", "-c", `{ cat; echo; pwd; env; } >"$OUT"`)
	s.Exec.Dir, s.Exec.Env = dir, []string{"OUT=" + out}
	_, err := runExec(t, s, Options{Environ: []string{"KEPT=yes", "SPILLWAY_POSTGRES_DSN=hunter2", "SPILLWAY_AMQP_URL=hunter2", "SPILLWAY_MANAGEMENT_URL=hunter2"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, want := range []string{
		`{"a":1}`, dir, "KEPT=yes", "SPILLWAY_TASK_ID=42", "SPILLWAY_SCENE=payment.refund", "SPILLWAY_KEY=ord 7%ü", "SPILLWAY_ATTEMPT=3",
		"SPILLWAY_UNKNOWN=true", "SPILLWAY_DEADLINE=2096-07-08T08:10:11.5Z", "SPILLWAY_IDEMPOTENCY_KEY=orders/payment.refund/ord 7%ü",
	} {
		if !strings.Contains("\n"+got, "\n"+want+"\n") {
			t.Errorf("%s is missing in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "hunter2") {
		t.Errorf("a secret in:\n%s", got)
	}
	if !strings.Contains(got, `"Traceparent":"00-1"`) {
		t.Errorf("no headers in:\n%s", got)
	}
}

func TestExecStderr(t *testing.T) {
	var stderr strings.Builder
	class, err := runExec(t, execScene(retry.UnknownReview, "/bin/sh", "-c", `head -c 100000 /dev/zero | tr '\0' x >&2; echo "the end" >&2; echo out; exit 65`), Options{Stderr: &stderr})
	if class != retry.ClassPermanent || err == nil {
		t.Fatalf("got %s %v", class, err)
	}
	text := err.Error()
	if len(text) > maxErrorText || len(text) < maxErrorText-100 || !strings.HasSuffix(text, "the end") || !strings.HasPrefix(text, "command: exit status 65: …x") {
		t.Errorf("%d bytes: %.60s … %s", len(text), text, text[max(len(text)-20, 0):])
	}
	if stderr.Len() != 100000+len("the end\n") {
		t.Errorf("%d bytes passed on", stderr.Len())
	}
	if _, err := runExec(t, execScene(retry.UnknownReview, "/bin/sh", "-c", "exit 1"), Options{}); err == nil || err.Error() != "command: exit status 1" {
		t.Errorf("got %v", err)
	}
}

func TestExecCannotStart(t *testing.T) {
	// Nothing ran, so this is known not to have taken effect.
	class, err := runExec(t, execScene(retry.UnknownReview, filepath.Join(t.TempDir(), "gone")), Options{})
	if class != retry.ClassTransient || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %s %v", class, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := execScene(retry.UnknownReview, "/bin/sh", "-c", "exit 0")
	if _, err := newExecRunner(*s.Exec, stepExecute, Options{}).run(ctx, call()); s.ClassOf(err) != retry.ClassTransient || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestExecIgnoresInput: a command that does not read its stdin is not an error, however much there is.
func TestExecIgnoresInput(t *testing.T) {
	c := call()
	c.Task.Args = make([]byte, 1<<20)
	if _, err := newExecRunner(*execScene(retry.UnknownReview, "/bin/true").Exec, stepExecute, Options{}).run(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// stopRunning runs a script that writes a process id, cancels once it is there, and returns it and the run's error.
func stopRunning(t *testing.T, stop time.Duration, script string) (pid int, err error) {
	t.Helper()
	pidFile := filepath.Join(t.TempDir(), "pid")
	s := execScene(retry.UnknownReview, "/bin/sh", "-c", script)
	s.Exec.Env = []string{"PID=" + pidFile}
	r := newExecRunner(*s.Exec, stepExecute, Options{Environ: os.Environ()})
	r.stopTime = stop
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { _, err := r.run(ctx, call()); done <- err }()
	wait(t, "the command's process id", func() bool {
		b, readErr := os.ReadFile(pidFile)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return readErr == nil && pid > 0
	})
	cancel(errStopping)
	select {
	case err = <-done:
		return pid, err
	case <-time.After(20 * time.Second):
		t.Fatal("the command was not stopped")
		return 0, nil
	}
}

var errStopping = errors.New("consumer stops")

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatalf("no %s within 20 s", what)
		}
	}
}

func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	// An orphan that nobody has waited for yet is dead as well.
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestExecStopsItsGroup(t *testing.T) {
	pid, err := stopRunning(t, 10*time.Second, `sleep 1000 & echo $! >"$PID"; wait`)
	if err == nil || !errors.Is(err, errStopping) || retry.MarkedClass(err) != retry.ClassNone {
		t.Errorf("got %v", err)
	}
	wait(t, "end of the grandchild", func() bool { return gone(pid) })
}

func TestExecStopsTheStubborn(t *testing.T) {
	pid, err := stopRunning(t, 50*time.Millisecond, `trap '' TERM; echo $$ >"$PID"; while :; do sleep 0.1; done`)
	if err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	wait(t, "end of the command", func() bool { return gone(pid) })
}

func TestExecStoppedButDone(t *testing.T) {
	if _, err := stopRunning(t, 10*time.Second, `trap 'exit 0' TERM; echo $$ >"$PID"; while :; do sleep 0.05; done`); err != nil {
		t.Errorf("it said that it was done: %v", err)
	}
	if _, err := stopRunning(t, 10*time.Second, `trap 'exit 75' TERM; echo $$ >"$PID"; while :; do sleep 0.05; done`); retry.MarkedClass(err) != retry.ClassTransient {
		t.Errorf("got %v", err)
	}
}

func TestExecGrandchildKeepsStderr(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	s := execScene(retry.UnknownReview, "/bin/sh", "-c", `sleep 1000 & echo $! >"$PID"; exit 0`)
	s.Exec.Env = []string{"PID=" + pidFile}
	r := newExecRunner(*s.Exec, stepExecute, Options{Environ: os.Environ()})
	r.stopTime = 50 * time.Millisecond
	if _, err := r.run(t.Context(), call()); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestTail(t *testing.T) {
	tl := &tail{limit: 5}
	for _, s := range []string{"abc", "defghijklmnop", "", "q", "r"} {
		if n, err := tl.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := tl.String(); got != "nopqr" {
		t.Errorf("got %q", got)
	}
}
