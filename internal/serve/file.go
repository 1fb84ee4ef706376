package serve

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/spillway-mq/spillway/retry"
)

// DefaultTimeout bounds an attempt where the file says nothing: a handler that hangs must not hold its task for ever.
const DefaultTimeout = time.Minute

// File is a scenes file that was read and found right.
type File struct {
	Path   string
	Scenes []Scene
	// AllowHosts are the hosts, in lower case, that http handlers may call although they are not this machine.
	AllowHosts []string
}

// Scene is a scene and what runs it.
type Scene struct {
	retry.Scene
	Program // Execute
	// The other handlers; nil where the scene has none.
	Check, Query, Callback *Program
}

// Program is what runs a handler: either HTTP or Exec is set.
type Program struct {
	HTTP *HTTP
	Exec *Exec
}

// HTTP is a handler that is called by POST.
type HTTP struct {
	URL     *url.URL
	Headers map[string]string // canonical names, values expanded
}

// Exec is a handler that is a command.
type Exec struct {
	Command []string // the program first, as an absolute path
	Dir     string   // absolute
	Env     []string // NAME=value, expanded
	// ExitCodes says what exit codes mean; 75 is transient unless named here. The same
	// for all commands of a scene.
	ExitCodes map[int]retry.Class
}

// Load reads a scenes file. lookup is os.LookupEnv, or a stand-in for tests. An error about the contents is a
// *FileError with all problems.
func Load(path string, lookup func(string) (string, bool)) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read scenes file: %w", err)
	}
	return Parse(path, data, lookup)
}

// Parse is Load for contents that were read already.
func Parse(path string, data []byte, lookup func(string) (string, bool)) (*File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find the folder of the scenes file: %w", err)
	}
	f := &fileReader{
		reader: reader{anchors: map[string]ast.Node{}, places: map[string]place{"": {1, 1}}, bad: map[string]bool{}},
		file:   File{Path: path}, folder: filepath.Dir(abs), lookup: lookup, names: map[string]place{},
	}
	if root := f.parseYAML(data); root != nil {
		f.top(root)
	}
	if len(f.problems) > 0 {
		slices.SortStableFunc(f.problems, func(a, b Problem) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
		})
		return nil, &FileError{Path: path, Problems: f.problems}
	}
	return &f.file, nil
}

type fileReader struct {
	reader
	file   File
	folder string
	lookup func(string) (string, bool)
	names  map[string]place // of scenes so far
}

func (f *fileReader) top(root ast.Node) {
	var scenes ast.Node
	ok := f.object(root, "", map[string]func(ast.Node, string){
		"allow_hosts": func(n ast.Node, field string) {
			f.list(n, field, "a list of host names", f.allowHost)
		},
		// Read at the end: a scene's check needs allow_hosts, which may come later.
		"scenes": func(n ast.Node, _ string) { scenes = n },
	})
	switch {
	case !ok:
	case scenes == nil:
		f.add(f.places[""], "scenes", "nothing", "a list with at least one scene")
	default:
		before := len(f.problems)
		f.list(scenes, "scenes", "a list with at least one scene", f.scene)
		if len(f.file.Scenes) == 0 && len(f.problems) == before {
			f.wrong(scenes, "scenes", "a list with at least one scene")
		}
	}
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,253})$`)

func (f *fileReader) allowHost(n ast.Node, field string) {
	const allowed = "a host name or an IP address, without scheme, port or wildcard"
	host, ok := f.text(n, field, allowed, false)
	if !ok {
		return
	}
	if _, err := netip.ParseAddr(host); err != nil && !hostName.MatchString(host) {
		f.wrong(n, field, allowed)
		return
	}
	f.file.AllowHosts = append(f.file.AllowHosts, strings.ToLower(host))
}

func (f *fileReader) scene(n ast.Node, field string) {
	s := Scene{Scene: retry.Scene{Timeout: DefaultTimeout}}
	var handler, exitCodes, queryPolicy, callbackPolicy ast.Node
	ok := f.object(n, field, map[string]func(ast.Node, string){
		"name":    func(n ast.Node, at string) { s.Name = f.sceneName(n, at) },
		"unknown": func(n ast.Node, at string) { s.Unknown = f.unknown(n, at) },
		"policy":  func(n ast.Node, at string) { s.Policy = f.policy(n, at) },
		"query_policy": func(n ast.Node, at string) {
			queryPolicy = n
			s.QueryPolicy = f.policy(n, at)
		},
		"callback_policy": func(n ast.Node, at string) {
			callbackPolicy = n
			s.CallbackPolicy = f.policy(n, at)
		},
		"check":       func(n ast.Node, at string) { s.Check = f.program(n, at) },
		"query":       func(n ast.Node, at string) { s.Query = f.program(n, at) },
		"callback":    func(n ast.Node, at string) { s.Callback = f.program(n, at) },
		"concurrency": func(n ast.Node, at string) { s.Concurrency, _ = f.integer(n, at, 1, 10_000) },
		"max_crashes": func(n ast.Node, at string) { s.MaxCrashes, _ = f.integer(n, at, 1, 1_000_000) },
		"timeout": func(n ast.Node, at string) {
			const allowed = durations + ", or 0s for none"
			d, ok := f.duration(n, at, allowed)
			if ok && (d < 0 || d > retry.MaxDelay) {
				f.wrong(n, at, allowed)
			}
			s.Timeout = d
		},
		"handler":    func(n ast.Node, _ string) { handler = n },
		"exit_codes": func(n ast.Node, _ string) { exitCodes = n },
	})
	if !ok {
		return
	}
	if _, given := f.places[field+".name"]; !given {
		f.add(f.placeOfField(field), field+".name", "nothing", "the scene's name")
	}
	if handler == nil {
		f.add(f.placeOfField(field), field+".handler", "nothing", "a mapping with http or exec")
	} else {
		s.Program = *f.program(handler, field+".handler")
	}
	f.together(field, &s, queryPolicy != nil, callbackPolicy != nil)
	if exitCodes != nil {
		f.exitCodes(exitCodes, field+".exit_codes", &s)
	}
	s.Classify = retry.ClassifyNet
	f.file.Scenes = append(f.file.Scenes, s)
}

func (f *fileReader) sceneName(n ast.Node, field string) string {
	const allowed = "1 to 127 characters of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
	name, ok := f.text(n, field, allowed, false)
	if !ok {
		return ""
	}
	if retry.CheckScene(name) != nil {
		f.wrong(n, field, allowed)
		return name
	}
	if first, twice := f.names[name]; twice {
		f.wrong(n, field, fmt.Sprintf("a name of its own (the scene in line %d has this one)", first.line))
		return name
	}
	f.names[name] = placeOf(n)
	return name
}

func (f *fileReader) unknown(n ast.Node, field string) retry.UnknownMode {
	const allowed = "review, repeat or ask"
	mode, ok := f.text(n, field, allowed, false)
	switch {
	case !ok:
	case slices.Contains([]retry.UnknownMode{retry.UnknownReview, retry.UnknownRepeat, retry.UnknownAsk}, retry.UnknownMode(mode)):
		return retry.UnknownMode(mode)
	default:
		f.wrong(n, field, allowed)
	}
	return ""
}

func (f *fileReader) policy(n ast.Node, field string) retry.Policy {
	p := retry.Policy{MaxAttempts: retry.DefaultMaxAttempts}
	var set bool
	read := func(dst *time.Duration) func(ast.Node, string) {
		return func(n ast.Node, at string) {
			set = true
			d, ok := f.duration(n, at, durations)
			if ok && d <= 0 {
				f.wrong(n, at, durations+", above 0")
			}
			*dst = d
		}
	}
	ok := f.object(n, field, map[string]func(ast.Node, string){
		"kind": func(n ast.Node, at string) {
			set = true
			const allowed = "FIXED, LINEAR, EXPONENTIAL or CUSTOM"
			kind, ok := f.text(n, at, allowed, false)
			p.Kind = retry.Kind(strings.ToUpper(kind))
			if ok && !slices.Contains([]retry.Kind{retry.Fixed, retry.Linear, retry.Exponential, retry.Custom}, p.Kind) {
				f.wrong(n, at, allowed)
			}
		},
		"base":     read(&p.Base),
		"cap":      read(&p.Cap),
		"deadline": read(&p.Deadline),
		"delays": func(n ast.Node, at string) {
			set = true
			f.list(n, at, "a list of durations such as [1s, 10s, 1m]", func(n ast.Node, at string) {
				var d time.Duration
				read(&d)(n, at)
				p.Delays = append(p.Delays, d)
			})
		},
		"max_attempts": func(n ast.Node, at string) {
			set = true
			p.MaxAttempts, _ = f.integer(n, at, 1, retry.MaxAttemptsLimit)
		},
		"no_jitter": func(n ast.Node, at string) {
			set = true
			p.NoJitter, _ = f.boolean(n, at)
		},
	})
	if !ok || !set {
		return retry.Policy{}
	}
	if _, given := f.places[field+".kind"]; !given {
		p.Kind = retry.Exponential
		if len(p.Delays) > 0 {
			p.Kind = retry.Custom
		}
	}
	// What is left are the rules that span fields. Where a field has a problem already they would follow from it.
	if f.badBelow(field) {
		return p
	}
	for _, err := range p.Check() {
		var fe *retry.FieldError
		if errors.As(err, &fe) {
			name := field + strings.TrimPrefix(fe.Field, "policy")
			f.add(f.placeOfField(name), name, fe.Value, fe.Allowed)
		}
	}
	return p
}

// together checks what spans fields of a scene. field is the scene's.
func (f *fileReader) together(field string, s *Scene, queryPolicy, callbackPolicy bool) {
	bad := func(name, value, allowed string) {
		f.add(f.placeOfField(field+"."+name), field+"."+name, value, allowed)
	}
	_, said := f.places[field+".unknown"]
	switch {
	case f.bad[field+".unknown"]:
	case s.Query != nil && s.Unknown != retry.UnknownAsk && said:
		bad("unknown", strconv.Quote(string(s.Unknown)), "ask where there is a query handler")
	case s.Query != nil && s.Unknown != retry.UnknownAsk:
		bad("unknown", "nothing", "ask where there is a query handler")
	case s.Query == nil && s.Unknown == retry.UnknownAsk:
		bad("unknown", `"ask"`, "review or repeat: without a query handler there is nobody to ask")
	}
	if queryPolicy && s.Query == nil {
		bad("query_policy", "set", "left out where there is no query handler")
	}
	if callbackPolicy && s.Callback == nil {
		bad("callback_policy", "set", "left out where there is no callback handler")
	}
}

// program reads what runs a handler.
func (f *fileReader) program(n ast.Node, field string) *Program {
	s := &Program{}
	given := 0
	ok := f.object(n, field, map[string]func(ast.Node, string){
		"http": func(n ast.Node, at string) { given++; s.HTTP = f.http(n, at) },
		"exec": func(n ast.Node, at string) { given++; s.Exec = f.exec(n, at) },
	})
	if ok && given != 1 && !f.badBelow(field) {
		value := "nothing"
		if given == 2 {
			value = "both http and exec"
		}
		f.add(f.placeOfField(field), field, value, "either http or exec")
	}
	return s
}

func (f *fileReader) badBelow(field string) bool {
	for name := range f.bad {
		if strings.HasPrefix(name, field+".") {
			return true
		}
	}
	return false
}

func (f *fileReader) http(n ast.Node, field string) *HTTP {
	h := &HTTP{Headers: map[string]string{}}
	ok := f.object(n, field, map[string]func(ast.Node, string){
		"url": func(n ast.Node, at string) { h.URL = f.url(n, at) },
		"method": func(n ast.Node, at string) {
			if m, ok := f.text(n, at, "POST", false); ok && m != http.MethodPost {
				f.wrong(n, at, "POST")
			}
		},
		"headers": func(n ast.Node, at string) {
			entries, _ := f.mapping(n, at, "a mapping of header names to values")
			for _, e := range entries {
				f.header(h, e, at+"."+e.key)
			}
		},
	})
	if _, given := f.places[field+".url"]; ok && !given {
		f.add(f.placeOfField(field), field+".url", "nothing", "the address to POST to, such as http://127.0.0.1:8080/refund")
	}
	return h
}

func (f *fileReader) url(n ast.Node, field string) *url.URL {
	const allowed = "an http or https URL with a host and without user and fragment, such as http://127.0.0.1:8080/refund"
	text, ok := f.text(n, field, allowed, false)
	if !ok {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.Fragment != "" || u.User != nil {
		if err != nil || u.User != nil {
			f.add(f.where(field, n), field, "this address", allowed+" (a login belongs into headers)")
		} else {
			f.wrong(n, field, allowed)
		}
		return nil
	}
	if host := strings.ToLower(u.Hostname()); !isLoopbackName(host) && !slices.Contains(f.file.AllowHosts, host) {
		f.wrong(n, field, fmt.Sprintf("on this machine (localhost, 127.0.0.1 or [::1]), unless the file's allow_hosts names %q", host))
	}
	return u
}

// isLoopbackName is the courtesy check when the file is read. What counts is the check of the address that is dialled.
func isLoopbackName(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// ownHeaders are set by the handler itself or steer the connection.
var ownHeaders = []string{"Connection", "Content-Length", "Content-Type", "Expect", "Host", "Idempotency-Key", "Keep-Alive",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// What net/http would refuse to send.
var (
	headerName  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	headerValue = regexp.MustCompile(`^[^\x00-\x08\x0a-\x1f\x7f]*$`)
)

func isOwnHeader(name string) bool {
	name = http.CanonicalHeaderKey(name)
	return slices.Contains(ownHeaders, name) || strings.HasPrefix(name, "Spillway-")
}

func (f *fileReader) header(h *HTTP, e entry, field string) {
	if !headerName.MatchString(e.key) || isOwnHeader(e.key) {
		f.add(e.at, field, "this name", "a header's name, and none that serve sets itself (Content-Type, Idempotency-Key, Host, Spillway-…)")
		return
	}
	value, ok := f.expanded(e.value, field, "text")
	if !ok {
		return
	}
	if !headerValue.MatchString(value) {
		// Not shown: it may be a secret.
		f.add(f.where(field, e.value), field, "this value", "text without line breaks and other control characters")
		return
	}
	h.Headers[http.CanonicalHeaderKey(e.key)] = value
}

func (f *fileReader) exec(n ast.Node, field string) *Exec {
	x := &Exec{Dir: f.folder}
	var command ast.Node
	ok := f.object(n, field, map[string]func(ast.Node, string){
		"command": func(n ast.Node, at string) {
			command = n
			f.list(n, at, `a list, such as [./send.py, --now]`, func(n ast.Node, at string) {
				s, ok := f.text(n, at, "text without NUL", true)
				if ok && strings.ContainsRune(s, 0) {
					f.wrong(n, at, "text without NUL")
				}
				x.Command = append(x.Command, s)
			})
		},
		"dir": func(n ast.Node, at string) {
			dir, ok := f.text(n, at, "a folder", false)
			if !ok {
				return
			}
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(f.folder, dir)
			}
			if st, err := os.Stat(dir); err != nil || !st.IsDir() {
				f.wrong(n, at, "a folder that exists, absolute or relative to the file's folder")
			}
			x.Dir = dir
		},
		"env": func(n ast.Node, at string) {
			entries, _ := f.mapping(n, at, "a mapping of variable names to values")
			for _, e := range entries {
				f.env(x, e, at+"."+e.key)
			}
		},
	})
	switch {
	case !ok || f.badBelow(field):
	case len(x.Command) == 0 || x.Command[0] == "":
		f.add(f.placeOfField(field+".command"), field+".command", f.show(command), `a list that begins with a program, such as [./send.py, --now]`)
	default:
		f.find(x, field+".command[0]")
	}
	return x
}

// find finds the command now: a consumer that can run nothing should say so before it claims anything.
func (f *fileReader) find(x *Exec, field string) {
	name := x.Command[0]
	if strings.ContainsRune(name, filepath.Separator) && !filepath.IsAbs(name) {
		name = filepath.Join(f.folder, name)
	}
	found, err := exec.LookPath(name)
	if err == nil {
		found, err = filepath.Abs(found)
	}
	if err != nil {
		f.add(f.placeOfField(field), field, strconv.Quote(x.Command[0]),
			"an executable file, absolute, relative to the file's folder (with a slash) or found in PATH")
		return
	}
	x.Command[0] = found
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (f *fileReader) env(x *Exec, e entry, field string) {
	if !envName.MatchString(e.key) {
		f.add(e.at, field, "this name", "a variable's name of A-Z, a-z, 0-9 and _, not beginning with a digit")
		return
	}
	value, ok := f.expanded(e.value, field, "text")
	if !ok {
		return
	}
	if strings.ContainsRune(value, 0) {
		f.add(f.where(field, e.value), field, "this value", "text without NUL")
		return
	}
	x.Env = append(x.Env, e.key+"="+value)
}

var reference = regexp.MustCompile(`\$?\$\{[^}]*\}?`)

// expanded reads text and puts environment variables in.
func (f *fileReader) expanded(n ast.Node, field, allowed string) (string, bool) {
	text, ok := f.text(n, field, allowed, true)
	if !ok {
		return "", false
	}
	text = reference.ReplaceAllStringFunc(text, func(ref string) string {
		if strings.HasPrefix(ref, "$$") {
			return ref[1:]
		}
		name := strings.TrimSuffix(strings.TrimPrefix(ref, "${"), "}")
		if !envName.MatchString(name) || !strings.HasSuffix(ref, "}") {
			f.add(f.where(field, n), field, strconv.Quote(ref), "a reference like ${NAME}, or $${ for a plain ${")
			ok = false
			return ""
		}
		value, isSet := f.lookup(name)
		if !isSet {
			f.add(f.where(field, n), field, strconv.Quote(ref), "an environment variable that is set")
			ok = false
		}
		return value
	})
	return text, ok
}

func (f *fileReader) exitCodes(n ast.Node, field string, s *Scene) {
	var commands []*Exec
	whole := s.HTTP != nil
	for _, p := range []*Program{&s.Program, s.Check, s.Query, s.Callback} {
		if p != nil && p.Exec != nil {
			commands = append(commands, p.Exec)
		}
	}
	if len(commands) == 0 && whole {
		f.add(f.placeOfField(field), field, "set", "left out where no handler is exec")
		return
	}
	codes := map[int]retry.Class{}
	entries, _ := f.mapping(n, field, "a mapping of exit codes to permanent, transient or unknown")
	for _, e := range entries {
		name := field + "." + e.key
		code, err := strconv.Atoi(e.key)
		if err != nil || code < 1 || code > 255 {
			f.add(e.at, name, strconv.Quote(e.key), "an exit code from 1 to 255 (0 is success)")
			continue
		}
		const allowed = "permanent, transient or unknown"
		class, ok := f.text(e.value, name, allowed, false)
		switch retry.Class(class) {
		case retry.ClassPermanent, retry.ClassTransient, retry.ClassUnknown:
			codes[code] = retry.Class(class)
		case retry.ClassNone:
			if ok {
				f.wrong(e.value, name, allowed)
			}
		default:
			f.wrong(e.value, name, allowed)
		}
	}
	for _, x := range commands {
		x.ExitCodes = codes
	}
}
