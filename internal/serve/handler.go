package serve

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// Call is one attempt at a task.
type Call struct {
	Task    retry.Task // Args are the arguments
	Attempt int
	// Deadline of the task. Zero: none.
	Deadline time.Time
	// Key is the idempotency key that is unique for the task among all services and scenes.
	Key string
}

// Handler runs the attempts of one scene.
type Handler struct {
	Scene retry.Scene
	// Target says what runs the scene, for people.
	Target string
	// Run is Execute. It may be called concurrently, as may the others. Its error is marked with its class, unless the
	// scene's rules shall decide.
	Run func(ctx context.Context, c Call) error
	// Check, Query and Callback are nil where the scene has none. What Check and Query say is the word that was answered.
	Check, Query func(ctx context.Context, c Call) (string, error)
	Callback     func(ctx context.Context, c Call) error
}

// The names of the four handlers, as programs are told.
const (
	stepCheck    = "check"
	stepQuery    = "query"
	stepExecute  = "execute"
	stepCallback = "callback"
)

// maxAnswer bounds what Check or Query may say, in bytes.
const maxAnswer = 4096

// runner runs one handler of a scene.
type runner interface {
	// run calls it. The answer is what it said, where the handler is one that says something.
	run(ctx context.Context, c Call) (answer string, err error)
	// target says what is called, for people.
	target() string
}

// answers reports whether a handler's success has something to say.
func answers(step string) bool { return step == stepCheck || step == stepQuery }

// word reads an answer: a JSON object with "answer", or the word alone.
func word(text []byte) string {
	var object struct {
		Answer string `json:"answer"`
	}
	if json.Unmarshal(text, &object) == nil {
		return object.Answer
	}
	return strings.TrimSpace(string(text))
}

// Options of Handlers.
type Options struct {
	// Environ is what exec handlers inherit, as os.Environ gives it, less the addresses of Postgres and RabbitMQ.
	Environ []string
	// Stdout and Stderr get what commands write, besides what goes into errors. An *os.File is handed to the command as
	// it is; anything else must allow concurrent writes. nil: nowhere.
	Stdout, Stderr io.Writer
}

// Handlers returns a handler for every scene of the file. The idle connections of http handlers are closed by close.
func (f *File) Handlers(opts Options) (handlers []Handler, closeIdle func()) {
	var idle []*http.Client
	for _, s := range f.Scenes {
		build := func(p *Program, step string) runner {
			if p.HTTP == nil {
				return newExecRunner(*p.Exec, step, opts)
			}
			r := newHTTPRunner(s.Scene, *p.HTTP, step, f.AllowHosts)
			idle = append(idle, r.client)
			return r
		}
		silent := func(r runner) func(context.Context, Call) error {
			return func(ctx context.Context, c Call) error { _, err := r.run(ctx, c); return err }
		}
		execute := build(&s.Program, stepExecute)
		h := Handler{Scene: s.Scene, Target: execute.target(), Run: silent(execute)}
		if s.Check != nil {
			h.Check = build(s.Check, stepCheck).run
		}
		if s.Query != nil {
			h.Query = build(s.Query, stepQuery).run
		}
		if s.Callback != nil {
			h.Callback = silent(build(s.Callback, stepCallback))
		}
		handlers = append(handlers, h)
	}
	return handlers, func() {
		for _, c := range idle {
			c.CloseIdleConnections()
		}
	}
}

// deadlineText is RFC 3339 in UTC; empty where there is none.
func deadlineText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// withoutQuery leaves out where secrets tend to be.
func withoutQuery(u *url.URL) string {
	c := *u
	c.User, c.RawQuery, c.ForceQuery, c.Fragment, c.RawFragment = nil, "", false, "", ""
	return c.String()
}
