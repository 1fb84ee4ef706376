package publisher_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

func TestInvalidTasks(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, func(c *publisher.Config) {
		c.Scenes = []retry.Scene{{Name: "mail.send"}, {Name: "payment.refund"}}
		c.MaxPayload = 100
	})
	big := map[string]string{"h": strings.Repeat("x", 16<<10)}
	cases := []struct {
		name  string
		task  publisher.Task
		field string
		says  string // part of the error's text
	}{
		{"no scene", publisher.Task{}, "scene", "1 to 127"},
		{"scene alphabet", publisher.Task{Scene: "Mail Send"}, "scene", "1 to 127"},
		{"long scene", publisher.Task{Scene: strings.Repeat("s", 128)}, "scene", "1 to 127"},
		{"unknown scene", publisher.Task{Scene: "mail.sent"}, "scene", "mail.send, payment.refund"},
		{"long key", publisher.Task{Scene: "mail.send", Key: strings.Repeat("k", 256)}, "key", "1 to 255"},
		{"key with newline", publisher.Task{Scene: "mail.send", Key: "a\nb"}, "key", "control"},
		{"key not UTF-8", publisher.Task{Scene: "mail.send", Key: "\xff"}, "key", "UTF-8"},
		{"negative delay", publisher.Task{Scene: "mail.send", Delay: -1}, "delay", "0 (now)"},
		{"huge delay", publisher.Task{Scene: "mail.send", Delay: math.MaxInt64}, "delay", "ten years"},
		{"negative deadline", publisher.Task{Scene: "mail.send", Deadline: -time.Second}, "deadline", "0 (delay and the policy's)"},
		{"huge deadline", publisher.Task{Scene: "mail.send", Deadline: math.MaxInt64}, "deadline", "ten years"},
		{"deadline before it begins", publisher.Task{Scene: "mail.send", Delay: time.Hour, Deadline: time.Hour}, "deadline", "above the delay"},
		{"long workflow", publisher.Task{Scene: "mail.send", Workflow: strings.Repeat("w", 256)}, "workflow", "255"},
		{"workflow with NUL", publisher.Task{Scene: "mail.send", Workflow: "a\x00"}, "workflow", "control"},
		{"empty header", publisher.Task{Scene: "mail.send", Headers: map[string]string{"": "x"}}, "headers", "1 to 255"},
		{"header with NUL", publisher.Task{Scene: "mail.send", Headers: map[string]string{"a": "\x00"}}, "headers[a]", "NUL"},
		{"big headers", publisher.Task{Scene: "mail.send", Headers: big}, "headers", "16384"},
		{"payload over the limit", publisher.Task{Scene: "mail.send", Args: make([]byte, 101)}, "args", `"101 bytes" is not allowed: must be at most 100 bytes`},
		{"payload over the limit as JSON", publisher.Task{Scene: "mail.send", Args: strings.Repeat("x", 99)}, "args", "101 bytes"},
		{"broken raw JSON", publisher.Task{Scene: "mail.send", Args: json.RawMessage(`{"a":`)}, "args", "valid JSON"},
		{"not JSON", publisher.Task{Scene: "mail.send", Args: func() {}}, "args", "func()"},
		{"not JSON either", publisher.Task{Scene: "mail.send", Args: math.Inf(1)}, "args", "float64"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := p.Enqueue(t.Context(), c.task)
			checkField(t, err, c.field, c.says)
			_, err = p.EnqueueMany(t.Context(), []publisher.Task{{Scene: "mail.send"}, c.task})
			checkField(t, err, c.field, c.says)
			if err != nil && !strings.Contains(err.Error(), "task 1: ") {
				t.Errorf("error names no index: %v", err)
			}
		})
	}
	if n := countTasks(t, store); n != 0 {
		t.Errorf("%d tasks stored", n)
	}
}

func checkField(t *testing.T, err error, field, says string) {
	t.Helper()
	var fe *retry.FieldError
	if !errors.Is(err, retry.ErrInvalid) || !errors.As(err, &fe) {
		t.Fatalf("got %v, want a FieldError", err)
	}
	if fe.Field != field || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want field %s and %q", err, field, says)
	}
}

func TestAllThatIsWrongIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	p, _ := newPublisher(t, nil)
	_, err := p.Enqueue(t.Context(), publisher.Task{Scene: "UPPER", Key: "\x00", Delay: -1, Args: func() {}})
	for _, field := range []string{"scene:", "key:", "delay:", "args:"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

func TestEncoding(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	type refund struct {
		Order string `json:"order"`
	}
	cases := []struct {
		name, stored, contentType string
		args                      any
	}{
		{"nil", "null", "application/json", nil},
		{"struct", `{"order":"o-1"}`, "application/json", refund{"o-1"}},
		{"pointer", `{"order":"o-1"}`, "application/json", &refund{"o-1"}},
		{"string", `"x"`, "application/json", "x"},
		{"raw", `{"a": 1}`, "application/json", json.RawMessage(`{"a": 1}`)},
		{"nil raw", "null", "application/json", json.RawMessage(nil)},
		{"bytes", "\x00\xff", "application/octet-stream", []byte{0, 255}},
		{"nil bytes", "", "application/octet-stream", []byte(nil)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Args: c.args})
			if err != nil {
				t.Fatal(err)
			}
			task := get(t, store, r.ID)
			if string(task.Args) != c.stored || task.ContentType != c.contentType {
				t.Errorf("stored %q as %s, want %q as %s", task.Args, task.ContentType, c.stored, c.contentType)
			}
		})
	}
}

func TestTimesAndFields(t *testing.T) {
	t.Parallel()
	policy := retry.Policy{Kind: retry.Fixed, Base: time.Second, MaxAttempts: 3, Deadline: time.Hour}
	p, store := newPublisher(t, func(c *publisher.Config) { c.Scenes = []retry.Scene{{Name: "s", Policy: policy}} })
	const days = 24 * time.Hour
	cases := []struct {
		name            string
		delay, deadline time.Duration // asked
		due, end        time.Duration // stored
	}{
		{"at once", 0, 0, 0, time.Hour},
		{"rounded up", 1150 * time.Millisecond, 0, 1200 * time.Millisecond, time.Hour + 1200*time.Millisecond},
		{"own deadline", time.Second, time.Minute, time.Second, time.Minute},
		{"60 days", 60 * days, 0, 60 * days, 60*days + time.Hour},
		{"ten years", retry.MaxDelay, 0, retry.MaxDelay, retry.MaxDelay + time.Hour},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, err := p.Enqueue(t.Context(), publisher.Task{
				Scene: "s", Key: c.name, Delay: c.delay, Deadline: c.deadline, Headers: map[string]string{"trace": "1"},
			})
			if err != nil {
				t.Fatal(err)
			}
			if !r.Created || r.Status != retry.StatusWait {
				t.Errorf("got %+v", r)
			}
			task := get(t, store, r.ID)
			due, end := task.NextAt.Sub(task.CreatedAt), task.DeadlineAt.Sub(task.CreatedAt)
			if due != c.due || end != c.end || due != topology.Grid().Up(c.delay) {
				t.Errorf("due after %v, deadline after %v, want %v and %v", due, end, c.due, c.end)
			}
			if task.Key != c.name || task.Headers["trace"] != "1" {
				t.Errorf("stored %+v", task)
			}
		})
	}
}

func TestWorkflowSharesItsFirstDeadline(t *testing.T) {
	t.Parallel()
	p, store := newPublisher(t, nil)
	var ends []time.Time
	for _, d := range []time.Duration{time.Hour, time.Minute} {
		r, err := p.Enqueue(t.Context(), publisher.Task{Scene: "s", Workflow: "order-1", Deadline: d})
		if err != nil {
			t.Fatal(err)
		}
		task := get(t, store, r.ID)
		if task.Workflow != "order-1" {
			t.Errorf("workflow %q", task.Workflow)
		}
		ends = append(ends, *task.DeadlineAt)
	}
	if !ends[0].Equal(ends[1]) {
		t.Errorf("deadlines %v differ", ends)
	}
}
