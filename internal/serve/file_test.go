package serve

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

func noEnv(string) (string, bool) { return "", false }

// folder makes a folder with an executable run.sh and returns the path of a scenes file in it.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "scenes.yaml")
}

func TestParseWhole(t *testing.T) {
	path := folder(t)
	lookup := func(name string) (string, bool) {
		if name == "TOKEN" {
			return "s3cret", true
		}
		return "", false
	}
	f, err := Parse(path, []byte(`# a comment
allow_hosts: [Billing.Internal, 10.0.0.7]
scenes:
  - name: payment.refund
    unknown: repeat
    timeout: 1.5s
    concurrency: 4
    max_crashes: 2
    policy: &patient
      kind: exponential
      base: 1s
      cap: 5m
      max_attempts: 8
      deadline: 24h
      no_jitter: true
    handler:
      http:
        url: http://billing.internal:8080/refund?x=1
        method: POST
        headers:
          authorization: "Bearer ${TOKEN} $${x} $5"
          X-Number: 7
  - name: mail.send
    timeout: 0s
    policy: {delays: [1s, 10s]}
    exit_codes: {65: permanent, 75: unknown, 3: transient}
    handler:
      exec:
        command: [./run.sh, --times, 3]
        dir: sub
        env: {A: "${TOKEN}", PORT: 8080}
  - name: plain
    policy: *patient
    handler: {exec: {command: [sh, -c, "exit 0"]}}
  - {name: least, handler: {http: {url: "https://[::1]/x"}}}
`), lookup)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.AllowHosts, []string{"billing.internal", "10.0.0.7"}) || len(f.Scenes) != 4 {
		t.Fatalf("got %+v", f)
	}
	patient := retry.Policy{Kind: retry.Exponential, Base: time.Second, Cap: 5 * time.Minute, MaxAttempts: 8, Deadline: 24 * time.Hour, NoJitter: true}
	refund, mail, plain, least := f.Scenes[0], f.Scenes[1], f.Scenes[2], f.Scenes[3]
	if !equalPolicy(refund.Policy, patient) || !equalPolicy(plain.Policy, patient) {
		t.Errorf("policies %+v, %+v", refund.Policy, plain.Policy)
	}
	if refund.Unknown != retry.UnknownRepeat || refund.Timeout != 1500*time.Millisecond || refund.Concurrency != 4 || refund.MaxCrashes != 2 || refund.Exec != nil {
		t.Errorf("got %+v", refund)
	}
	if h := refund.HTTP.Headers; h["Authorization"] != "Bearer s3cret ${x} $5" || h["X-Number"] != "7" {
		t.Errorf("headers %v", h)
	}
	if mail.Policy.Kind != retry.Custom || mail.Policy.MaxAttempts != retry.DefaultMaxAttempts || mail.Timeout != 0 || mail.HTTP != nil {
		t.Errorf("got %+v", mail)
	}
	dir := filepath.Dir(path)
	if x := mail.Exec; !slices.Equal(x.Command, []string{filepath.Join(dir, "run.sh"), "--times", "3"}) || x.Dir != filepath.Join(dir, "sub") ||
		!slices.Equal(x.Env, []string{"A=s3cret", "PORT=8080"}) || x.ExitCodes[65] != retry.ClassPermanent || x.ExitCodes[75] != retry.ClassUnknown {
		t.Errorf("got %+v", x)
	}
	if !filepath.IsAbs(plain.Exec.Command[0]) || plain.Exec.Dir != dir {
		t.Errorf("got %+v", plain.Exec)
	}
	if least.Timeout != DefaultTimeout || !equalPolicy(least.Policy, retry.Policy{}) || least.Unknown != "" {
		t.Errorf("got %+v", least)
	}
	for _, s := range f.Scenes {
		if err := s.Scene.Check(); err != nil {
			t.Error(err)
		}
	}
}

func equalPolicy(a, b retry.Policy) bool {
	return a.Kind == b.Kind && a.Base == b.Base && a.Cap == b.Cap && a.MaxAttempts == b.MaxAttempts && a.Deadline == b.Deadline &&
		a.NoJitter == b.NoJitter && slices.Equal(a.Delays, b.Delays)
}

// TestBrokenFiles: each want is the beginning of a line of the error, without the path; there are no other lines.
func TestBrokenFiles(t *testing.T) {
	const handler = ", handler: {exec: {command: [sh]}}}"
	tests := []struct {
		name, text string
		want       []string
	}{
		{"empty", "", []string{":1:1: scenes: nothing: must be a list with at least one scene"}},
		{"comment only", "# nothing\n", []string{":1:1: scenes: nothing"}},
		{"no scenes", "allow_hosts: [a]\n", []string{":1:1: scenes: nothing"}},
		{"scenes null", "scenes:\n", []string{":1:9: scenes: nothing: must be a list"}},
		{"scenes empty", "scenes: []\n", []string{":1:9: scenes: a list: must be a list with at least one scene"}},
		{"scenes a mapping", "scenes: {a: 1}\n", []string{":1:9: scenes: a mapping: must be a list"}},
		{"a list at the top", "- a\n", []string{":1:1: file: a list: must be a mapping with allow_hosts, scenes"}},
		{"text at the top", "hello\n", []string{":1:1: file: \"hello\": must be a mapping"}},
		{"syntax", "scenes:\n  - name: [a\n", []string{":2:11: file: this text: must be YAML: "}},
		{"tab", "scenes:\n\t- name: a\n", []string{":2:1: file: this text: must be YAML: "}},
		{"two documents", "scenes: [{name: a" + handler + "]\n---\nscenes: []\n", []string{":3:1: file: a second document"}},
		{"unknown alias", "scenes: *nowhere\n", []string{":1:9: scenes: *nowhere: must be a list"}},
		{"alias of itself", "scenes: &a [*a]\n", []string{":1:13: scenes[0]: a list: must be a mapping with callback, "}},
		{"unknown fields", "scene: 1\nscenes:\n  - naem: a\n    handler: {exec: {comand: [sh]}}\n    zzz: 1\n", []string{
			":1:1: scene: unknown field: must be one of allow_hosts, scenes (did you mean \"scenes\"?)",
			":3:5: scenes[0].naem: unknown field: must be one of callback, callback_policy, check, concurrency, exit_codes, handler, max_crashes, name, policy, query, query_policy, timeout, unknown (did you mean \"name\"?)",
			":3:5: scenes[0].name: nothing: must be the scene's name",
			":4:22: scenes[0].handler.exec.comand: unknown field: must be one of command, dir, env (did you mean \"command\"?)",
			":5:5: scenes[0].zzz: unknown field: must be one of",
		}},
		{"twice", "scenes:\n  - name: a\n    name: b\n    handler: {exec: {command: [sh]}}\n", []string{":3:5: scenes[0].name: given twice: must be given once (line 2 has it too)"}},
		{"names", "scenes:\n  - {name: Bad Name" + handler + "\n  - {name: a" + handler + "\n  - {name: a" + handler + "\n  - {name: 12" + handler + "\n  - {name: [x]" + handler + "\n", []string{
			`:2:12: scenes[0].name: "Bad Name": must be 1 to 127 characters`,
			`:4:12: scenes[2].name: "a": must be a name of its own (the scene in line 3 has this one)`,
			`:5:12: scenes[3].name: 12: must be 1 to 127 characters of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit (in quotes`,
			`:6:12: scenes[4].name: a list: must be`,
		}},
		{"a scene that is text", "scenes: [a]\n", []string{`:1:10: scenes[0]: "a": must be a mapping with`}},
		{"nothing in a scene", "scenes:\n  -\n", []string{`:2:5: scenes[0]: nothing: must be a mapping with`}},
		{"unknown mode", "scenes:\n  - {name: a, unknown: ask" + handler + "\n  - {name: b, unknown: redo" + handler + "\n", []string{
			`:2:24: scenes[0].unknown: "ask": must be review or repeat: without a query handler there is nobody to ask`,
			`:3:24: scenes[1].unknown: "redo": must be review, repeat or ask`,
		}},
		{"steps", "scenes:\n  - name: a\n    query: {exec: {command: [sh]}}\n    callback: {}\n    check: {http: {url: nowhere}}\n    handler: {exec: {command: [sh]}}\n" +
			"  - name: b\n    unknown: repeat\n    query: {exec: {command: [sh]}}\n    query_policy: {base: soon}\n    callback_policy: {base: 1s}\n    handler: {exec: {command: [sh]}}\n" +
			"  - name: c\n    query_policy: {kind: FIXED}\n    handler: {exec: {command: [sh]}}\n", []string{
			`:2:5: scenes[0].unknown: nothing: must be ask where there is a query handler`,
			`:4:15: scenes[0].callback: nothing: must be either http or exec`,
			`:5:25: scenes[0].check.http.url: "nowhere": must be an http or https URL`,
			`:8:14: scenes[1].unknown: "repeat": must be ask where there is a query handler`,
			`:10:26: scenes[1].query_policy.base: "soon": must be a duration`,
			`:11:22: scenes[1].callback_policy: set: must be left out where there is no callback handler`,
			`:14:19: scenes[2].query_policy: set: must be left out where there is no query handler`,
		}},
		{"numbers", "scenes:\n  - name: a\n    concurrency: 0\n    max_crashes: -1\n    timeout: 30\n    handler: {exec: {command: [sh]}}\n", []string{
			":3:18: scenes[0].concurrency: 0: must be a whole number from 1 to 10000",
			":4:18: scenes[0].max_crashes: -1: must be a whole number from 1 to",
			":5:14: scenes[0].timeout: 30: must be a duration such as 500ms, 1.5s or 10m, or 0s for none",
		}},
		{"durations", "scenes:\n  - name: a\n    timeout: -1s\n    policy: {base: soon, cap: 0s, deadline: }\n    handler: {exec: {command: [sh]}}\n", []string{
			`:3:14: scenes[0].timeout: "-1s": must be a duration`,
			`:4:20: scenes[0].policy.base: "soon": must be a duration such as`,
			`:4:31: scenes[0].policy.cap: "0s": must be a duration such as 500ms, 1.5s or 10m, above 0`,
			`:4:44: scenes[0].policy.deadline: nothing: must be a duration`,
		}},
		{"cap below base", "scenes:\n  - name: a\n    policy:\n      base: 10s\n      cap: 1s\n    handler: {exec: {command: [sh]}}\n", []string{
			":5:12: scenes[0].policy.cap: 1s: must be at least base (10s)",
		}},
		{"policy", "scenes:\n  - name: a\n    policy: {kind: WILD, max_attempts: 0, no_jitter: maybe, delays: 3s, unit: 1s}\n    handler: {exec: {command: [sh]}}\n", []string{
			`:3:20: scenes[0].policy.kind: "WILD": must be FIXED, LINEAR, EXPONENTIAL or CUSTOM`,
			`:3:40: scenes[0].policy.max_attempts: 0: must be a whole number from 1 to 1000000`,
			`:3:54: scenes[0].policy.no_jitter: "maybe": must be true or false`,
			`:3:69: scenes[0].policy.delays: "3s": must be a list of durations`,
			`:3:73: scenes[0].policy.unit: unknown field`,
		}},
		{"custom", "scenes:\n  - name: a\n    policy: {kind: CUSTOM}\n    handler: {exec: {command: [sh]}}\n  - name: b\n    policy: {kind: FIXED, delays: [1s]}\n    handler: {exec: {command: [sh]}}\n  - name: c\n    policy: {delays: [1s, -2s]}\n    handler: {exec: {command: [sh]}}\n", []string{
			`:3:13: scenes[0].policy.delays: "[]": must be at least one delay where kind is CUSTOM`,
			`:6:35: scenes[1].policy.delays: [1s]: must be empty unless kind is CUSTOM`,
			`:9:27: scenes[2].policy.delays[1]: "-2s": must be a duration`,
		}},
		{"handler", "scenes:\n  - {name: a}\n  - {name: b, handler: {}}\n  - {name: c, handler: {exec: {command: [sh]}, http: {url: 'http://localhost/'}}}\n  - {name: d, handler: http}\n  - {name: e, handler: {exec: {}}}\n  - {name: f, handler: {http: {}}}\n", []string{
			":2:5: scenes[0].handler: nothing: must be a mapping with http or exec",
			":3:24: scenes[1].handler: nothing: must be either http or exec",
			":4:24: scenes[2].handler: both http and exec: must be either http or exec",
			`:5:24: scenes[3].handler: "http": must be a mapping with exec, http`,
			`:6:31: scenes[4].handler.exec.command: nothing: must be a list that begins with a program`,
			`:7:31: scenes[5].handler.http.url: nothing: must be the address`,
		}},
		{"urls", "scenes:\n  - {name: a, handler: {http: {url: 'ftp://localhost/'}}}\n  - {name: b, handler: {http: {url: 'http://example.com/'}}}\n  - {name: c, handler: {http: {url: 'http://u:hunter2@localhost/'}}}\n" +
			"  - {name: d, handler: {http: {url: 'http://10.0.0.1/'}}}\n  - {name: e, handler: {http: {url: 'http://localhost/#x'}}}\n  - {name: f, handler: {http: {url: '/refund'}}}\n  - {name: g, handler: {http: {url: 'http://0.0.0.0/'}}}\n", []string{
			`:2:37: scenes[0].handler.http.url: "ftp://localhost/": must be an http or https URL`,
			`:3:37: scenes[1].handler.http.url: "http://example.com/": must be on this machine (localhost, 127.0.0.1 or [::1]), unless the file's allow_hosts names "example.com"`,
			`:4:37: scenes[2].handler.http.url: this address: must be an http or https URL with a host and without user`,
			`:5:37: scenes[3].handler.http.url: "http://10.0.0.1/": must be on this machine`,
			`:6:37: scenes[4].handler.http.url: "http://localhost/#x": must be`,
			`:7:37: scenes[5].handler.http.url: "/refund": must be`,
			`:8:37: scenes[6].handler.http.url: "http://0.0.0.0/": must be on this machine`,
		}},
		{"http", "scenes:\n  - name: a\n    handler:\n      http:\n        url: http://localhost/\n        method: GET\n        headers:\n          Host: x\n          bad name: x\n          spillway-task-id: 1\n          X-A: \"a\\nb\"\n          X-B: ${NOT_SET}\n          X-C: ${broken\n          X-D: [x]\n    exit_codes: {1: permanent}\n", []string{
			`:6:17: scenes[0].handler.http.method: "GET": must be POST`,
			`:8:11: scenes[0].handler.http.headers.Host: this name: must be a header's name`,
			`:9:11: scenes[0].handler.http.headers.bad name: this name: must be`,
			`:10:11: scenes[0].handler.http.headers.spillway-task-id: this name: must be`,
			`:11:16: scenes[0].handler.http.headers.X-A: this value: must be text without line breaks`,
			`:12:16: scenes[0].handler.http.headers.X-B: "${NOT_SET}": must be an environment variable that is set`,
			`:13:16: scenes[0].handler.http.headers.X-C: "${broken": must be a reference like ${NAME}`,
			`:14:16: scenes[0].handler.http.headers.X-D: a list: must be text`,
			`:15:17: scenes[0].exit_codes: set: must be left out where no handler is exec`,
		}},
		{"hosts", "allow_hosts: ['http://a', 'a:80', '*.b', ok, 5]\nscenes: [{name: a" + handler + "]\n", []string{
			`:1:15: allow_hosts[0]: "http://a": must be a host name`,
			`:1:27: allow_hosts[1]: "a:80": must be`,
			`:1:35: allow_hosts[2]: "*.b": must be`,
			`:1:46: allow_hosts[4]: 5: must be`,
		}},
		{"exec", "scenes:\n  - name: a\n    handler:\n      exec:\n        command: ./run.sh\n        dir: nowhere\n        env: {1A: x, B: {}}\n  - {name: b, handler: {exec: {command: [./missing.sh]}}}\n  - {name: c, handler: {exec: {command: [no-such-program-anywhere]}}}\n  - {name: d, handler: {exec: {command: []}}}\n  - {name: e, handler: {exec: {command: [./scenes.yaml]}}}\n", []string{
			`:5:18: scenes[0].handler.exec.command: "./run.sh": must be a list, such as [./send.py, --now]`,
			`:6:14: scenes[0].handler.exec.dir: "nowhere": must be a folder that exists`,
			`:7:15: scenes[0].handler.exec.env.1A: this name: must be a variable's name`,
			`:7:25: scenes[0].handler.exec.env.B: a mapping: must be text`,
			`:8:42: scenes[1].handler.exec.command[0]: "./missing.sh": must be an executable file`,
			`:9:42: scenes[2].handler.exec.command[0]: "no-such-program-anywhere": must be an executable file`,
			`:10:41: scenes[3].handler.exec.command: a list: must be a list that begins with a program`,
			`:11:42: scenes[4].handler.exec.command[0]: "./scenes.yaml": must be an executable file`,
		}},
		{"exit codes", "scenes:\n  - name: a\n    handler: {exec: {command: [sh]}}\n    exit_codes:\n      0: transient\n      65: never\n      abc: permanent\n      66: 5\n      67:\n", []string{
			`:5:7: scenes[0].exit_codes.0: "0": must be an exit code from 1 to 255 (0 is success)`,
			`:6:11: scenes[0].exit_codes.65: "never": must be permanent, transient or unknown`,
			`:7:7: scenes[0].exit_codes.abc: "abc": must be an exit code`,
			`:8:11: scenes[0].exit_codes.66: 5: must be permanent, transient or unknown`,
			`:9:11: scenes[0].exit_codes.67: nothing: must be`,
		}},
		{"merge key", "x: &x {a: 1}\nscenes: [{<<: *x, name: a" + handler + "]\n", []string{
			":1:1: x: unknown field",
			":2:11: scenes[0].<<: unknown field",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := folder(t)
			f, err := Parse(path, []byte(tt.text), noEnv)
			if err == nil {
				t.Fatalf("no error: %+v", f)
			}
			var fe *FileError
			if !errors.As(err, &fe) || !errors.Is(err, retry.ErrInvalid) {
				t.Fatalf("error of type %T: %v", err, err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("password in %v", err)
			}
			lines := strings.Split(err.Error(), "\n")
			for i := range max(len(lines), len(tt.want)) {
				got, want := "", ""
				if i < len(lines) {
					got = strings.TrimPrefix(lines[i], path)
				}
				if i < len(tt.want) {
					want = tt.want[i]
				}
				if want == "" || !strings.HasPrefix(got, want) {
					t.Errorf("problem %d:\n got %s\nwant %s", i, got, want)
				}
			}
		})
	}
}

func TestLoadMissing(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), noEnv); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("scenes:\n  - {name: a, handler: {exec: {command: [sh]}}}\n"))
	f.Add([]byte("scenes: &a [*a]\n"))
	f.Add([]byte("? [a]\n: b\nscenes: !!map {}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Any text ends as a file or as an error, and never as a panic.
		if _, err := Parse("fuzz.yaml", data, noEnv); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
	})
}
