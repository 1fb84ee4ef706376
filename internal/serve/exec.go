package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

const (
	// exitTransient is EX_TEMPFAIL of sysexits.h.
	exitTransient = 75
	// stopTime is between SIGTERM and SIGKILL.
	stopTime = 5 * time.Second
	// maxErrorText bounds what an error keeps of stderr, in bytes.
	maxErrorText = 4096
)

// secretNames are what commands do not inherit.
var secretNames = []string{"SPILLWAY_POSTGRES_DSN", "SPILLWAY_AMQP_URL", "SPILLWAY_MANAGEMENT_URL"}

type execRunner struct {
	cfg            Exec
	step           string
	env            []string
	stdout, stderr io.Writer
	stopTime       time.Duration
}

func newExecRunner(x Exec, step string, opts Options) *execRunner {
	env := slices.DeleteFunc(slices.Clone(opts.Environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(secretNames, name)
	})
	return &execRunner{cfg: x, step: step, env: append(env, x.Env...), stdout: opts.Stdout, stderr: opts.Stderr, stopTime: stopTime}
}

func (r *execRunner) target() string { return "exec " + r.cfg.Command[0] }

func (r *execRunner) run(ctx context.Context, c Call) (string, error) {
	if err := context.Cause(ctx); err != nil {
		return "", retry.Transient(fmt.Errorf("command not started: %w", err))
	}
	headers, err := json.Marshal(c.Task.Headers)
	if err != nil || len(c.Task.Headers) == 0 {
		headers = []byte("{}")
	}
	errText := &tail{limit: maxErrorText}
	// Not CommandContext: it would end the command alone and leave what the command started.
	cmd := exec.Command(r.cfg.Command[0], r.cfg.Command[1:]...)
	cmd.Dir = r.cfg.Dir
	cmd.Env = append(slices.Clone(r.env),
		"SPILLWAY_IDEMPOTENCY_KEY="+c.Key,
		"SPILLWAY_TASK_ID="+strconv.FormatInt(c.Task.ID, 10),
		"SPILLWAY_SCENE="+c.Task.Scene,
		"SPILLWAY_KEY="+c.Task.Key,
		"SPILLWAY_HANDLER="+r.step,
		"SPILLWAY_ATTEMPT="+strconv.Itoa(c.Attempt),
		"SPILLWAY_UNKNOWN="+strconv.FormatBool(c.Task.Unknown),
		"SPILLWAY_HEADERS="+string(headers),
	)
	if d := deadlineText(c.Deadline); d != "" {
		cmd.Env = append(cmd.Env, "SPILLWAY_DEADLINE="+d)
	}
	cmd.Stdin = bytes.NewReader(c.Task.Args)
	cmd.Stdout = r.stdout
	said := &head{limit: maxAnswer}
	if answers(r.step) {
		cmd.Stdout = said
	}
	cmd.Stderr = errText
	if r.stderr != nil {
		cmd.Stderr = io.MultiWriter(errText, r.stderr)
	}
	// A grandchild that keeps stderr open must not hold the task.
	cmd.WaitDelay = r.stopTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	started, ended := make(chan error, 1), make(chan error, 1)
	// This goroutine ends with the command, which ends at the latest by SIGKILL.
	go func() {
		// The kernel ties the command's life to the thread that started it, so that thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		// Nothing ran. A program that is missing or may not be run is a fault of the deployment and not a verdict on
		// this task: permanent would fail every task of the scene for one bad rollout. The budget and the deadline
		// bound it.
		return "", retry.Transient(fmt.Errorf("start command: %w", err))
	}

	var stopped error
	select {
	case err = <-ended:
	case <-ctx.Done():
		stopped = context.Cause(ctx)
		err = r.stop(cmd.Process.Pid, ended)
	}
	return word(said.buf), r.verdict(err, stopped, errText.String())
}

// stop ends the process group that the command leads.
func (r *execRunner) stop(group int, ended <-chan error) error {
	kill := func(sig syscall.Signal) { _ = syscall.Kill(-group, sig) } // it may have ended by itself
	kill(syscall.SIGTERM)
	timer := time.NewTimer(r.stopTime)
	defer timer.Stop()
	select {
	case err := <-ended:
		// The leader is gone. Others of its group had their warning.
		kill(syscall.SIGKILL)
		return err
	case <-timer.C:
		kill(syscall.SIGKILL)
		return <-ended
	}
}

// verdict turns how the command ended into the attempt's error.
func (r *execRunner) verdict(err, stopped error, stderr string) error {
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // exit code 0; only its stderr stayed open
	}
	if err == nil {
		return nil // also where it was asked to stop: it says that it is done
	}
	class := retry.ClassNone
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		switch code := exit.ExitCode(); {
		case r.cfg.ExitCodes[code] != retry.ClassNone:
			class = r.cfg.ExitCodes[code]
		case code == exitTransient:
			class = retry.ClassTransient
		}
	}
	if stopped != nil {
		err = fmt.Errorf("command stopped (%w): %w", stopped, err)
	} else {
		err = fmt.Errorf("command: %w", err)
	}
	if stderr = strings.TrimSpace(stderr); stderr != "" {
		// The end of stderr is what matters, and the store cuts at the end: so it is cut here, at its beginning.
		if room := maxErrorText - len(err.Error()) - len(": …"); len(stderr) > room {
			stderr = "…" + strings.ToValidUTF8(stderr[len(stderr)-max(room, 0):], "")
		}
		err = fmt.Errorf("%w: %s", err, stderr)
	}
	switch class {
	case retry.ClassPermanent:
		return retry.Permanent(err)
	case retry.ClassTransient:
		return retry.Transient(err)
	case retry.ClassUnknown:
		return retry.Unknown(err)
	case retry.ClassNone:
	}
	return err
}

// head keeps the first bytes written to it. One goroutine writes.
type head struct {
	limit int
	buf   []byte
}

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	h.buf = append(h.buf, p[:min(len(p), h.limit-len(h.buf))]...)
	return len(p), nil
}

// tail keeps the last bytes written to it. One goroutine writes.
type tail struct {
	limit int
	buf   []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > t.limit {
		// Moved only when twice full, so that many small writes stay cheap.
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String is the last limit bytes.
func (t *tail) String() string {
	return string(t.buf[max(len(t.buf)-t.limit, 0):])
}
