package serve

import (
	"context"
	"fmt"
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
	// Run makes one attempt. It may be called concurrently. Its error is marked with its class, unless the scene's rules
	// shall decide.
	Run func(ctx context.Context, c Call) error
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
		h := Handler{Scene: s.Scene}
		switch {
		case s.HTTP != nil:
			r := newHTTPRunner(s, f.AllowHosts)
			idle = append(idle, r.client)
			h.Target, h.Run = "POST "+withoutQuery(s.HTTP.URL), r.run
		case s.Exec != nil:
			r := newExecRunner(s, opts)
			h.Target, h.Run = "exec "+s.Exec.Command[0], r.run
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

// printable percent-encodes what is not printable ASCII, spaces (HTTP trims them at the ends, so that two keys could
// become one) and %.
func printable(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// withoutQuery leaves out where secrets tend to be.
func withoutQuery(u *url.URL) string {
	c := *u
	c.User, c.RawQuery, c.ForceQuery, c.Fragment, c.RawFragment = nil, "", false, "", ""
	return c.String()
}
