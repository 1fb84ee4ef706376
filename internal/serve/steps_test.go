package serve

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillway-mq/spillway/retry"
)

// A file whose scene has all four handlers, some of either kind.
func TestHandlersOfAllSteps(t *testing.T) {
	var said []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said = append(said, r.URL.Path+" "+r.Header.Get("Spillway-Handler"))
		_, _ = io.WriteString(w, map[string]string{"/word": " pending\n", "/object": `{"answer": "took_effect", "since": 1}`, "/none": `{"result": "took_effect"}`}[r.URL.Path])
	}))
	defer server.Close()
	scene := func(query string) string {
		return `
scenes:
  - name: stock.reserve
    unknown: ask
    handler: {http: {url: "` + server.URL + `/execute"}}
    query: {http: {url: "` + server.URL + query + `"}}
    check: {exec: {command: [sh, -c, "cat >/dev/null; echo $SPILLWAY_HANDLER; echo noise >&2"]}}
    callback: {exec: {command: [sh, -c, "exit 65"]}}
    exit_codes: {65: permanent}
    query_policy: {kind: FIXED, base: 3s, max_attempts: 30}
    callback_policy: {kind: FIXED, base: 4s, max_attempts: 40}
`
	}
	for path, want := range map[string]string{"/word": "pending", "/object": "took_effect", "/none": ""} {
		said = nil
		f, err := Parse("scenes.yaml", []byte(scene(path)), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		handlers, closeIdle := f.Handlers(Options{Environ: []string{"PATH=/usr/bin:/bin"}})
		h := handlers[0]
		if h.Scene.Unknown != retry.UnknownAsk || h.Scene.QueryPolicy.MaxAttempts != 30 || h.Scene.CallbackPolicy.MaxAttempts != 40 {
			t.Errorf("got %+v", h.Scene)
		}
		if answer, err := h.Check(t.Context(), call()); answer != "check" || err != nil {
			t.Errorf("check: %q, %v", answer, err)
		}
		if answer, err := h.Query(t.Context(), call()); answer != want || err != nil {
			t.Errorf("query: %q, %v, want %q", answer, err, want)
		}
		if err := h.Run(t.Context(), call()); err != nil {
			t.Error(err)
		}
		if err := h.Callback(t.Context(), call()); h.Scene.ClassOf(err) != retry.ClassPermanent {
			t.Errorf("callback: %v", err)
		}
		closeIdle()
		if got := strings.Join(said, ", "); got != path+" query, /execute execute" {
			t.Errorf("called %s", got)
		}
	}
}

// A lookup changes nothing, so its conflicts are worth another try.
func TestHTTPQueryErrors(t *testing.T) {
	for status, want := range map[int]retry.Class{409: retry.ClassTransient, 503: retry.ClassTransient, 500: retry.ClassTransient, 404: retry.ClassPermanent} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		s := httpScene(t, server.URL, retry.UnknownAsk)
		r := newHTTPRunner(s.Scene, *s.HTTP, stepQuery, nil)
		if answer, err := r.run(t.Context(), call()); answer != "" || s.ClassOf(err) != want {
			t.Errorf("%d: %q, %v, want %s", status, answer, err, want)
		}
		r.client.CloseIdleConnections()
		server.Close()
	}
}

// What a command says beyond the bound is left out, and does not stop it.
func TestExecLongAnswer(t *testing.T) {
	s := execScene(retry.UnknownAsk, "/bin/sh", "-c", "yes | head -c 100000")
	answer, err := newExecRunner(*s.Exec, stepQuery, Options{Environ: []string{"PATH=/usr/bin:/bin"}}).run(t.Context(), call())
	if err != nil || len(answer) > maxAnswer || !strings.HasPrefix(answer, "y\ny") {
		t.Errorf("%d bytes, %v", len(answer), err)
	}
}
