package retry_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

func TestHTTPClass(t *testing.T) {
	const (
		none, perm = retry.ClassNone, retry.ClassPermanent
		tran, unkn = retry.ClassTransient, retry.ClassUnknown
	)
	for _, tc := range []struct {
		status                int
		get, put, post, keyed retry.Class // keyed: POST, repeating is safe
	}{
		{200, none, none, none, none},
		{202, none, none, none, none},
		{299, none, none, none, none},
		{101, perm, perm, perm, perm},
		{301, perm, perm, perm, perm},
		{302, perm, unkn, unkn, unkn},
		{303, perm, unkn, unkn, unkn},
		{304, perm, perm, perm, perm},
		{308, perm, perm, perm, perm},
		{400, perm, perm, perm, perm},
		{401, perm, perm, perm, perm},
		{403, perm, perm, perm, perm},
		{404, perm, perm, perm, perm},
		{408, tran, tran, tran, tran},
		{409, perm, perm, perm, tran},
		{410, perm, perm, perm, perm},
		{412, perm, perm, perm, perm},
		{421, tran, tran, tran, tran},
		{422, perm, perm, perm, perm},
		{423, tran, tran, tran, tran},
		{425, tran, tran, tran, tran},
		{429, tran, tran, tran, tran},
		{499, perm, perm, perm, perm},
		{500, tran, tran, unkn, tran},
		{501, perm, perm, perm, perm},
		{502, tran, tran, unkn, tran},
		{503, tran, tran, tran, tran},
		{504, tran, tran, unkn, tran},
		{505, perm, perm, perm, perm},
		{507, tran, tran, tran, tran},
		{511, tran, tran, tran, tran},
		{599, tran, tran, unkn, tran},
		{0, tran, tran, unkn, tran},
		{-1, tran, tran, unkn, tran},
		{700, tran, tran, unkn, tran},
	} {
		check := func(want retry.Class, idempotent bool, methods ...string) {
			t.Helper()
			for _, m := range methods {
				if got := retry.HTTPClass(m, tc.status, idempotent); got != want {
					t.Errorf("HTTPClass(%q, %d, %v) = %q, want %q", m, tc.status, idempotent, got, want)
				}
			}
		}
		check(tc.get, false, "GET", "HEAD", "OPTIONS", "TRACE")
		check(tc.put, false, "PUT", "DELETE")
		check(tc.post, false, "POST", "PATCH", "CONNECT", "get", "")
		check(tc.keyed, true, "POST", "PATCH")
	}
}

// The flag never turns an answer into anything but transient.
func TestHTTPClassIdempotentOnlyRelaxes(t *testing.T) {
	for status := range 1000 {
		for _, m := range []string{"GET", "PUT", "POST"} {
			plain, keyed := retry.HTTPClass(m, status, false), retry.HTTPClass(m, status, true)
			if plain != keyed && keyed != retry.ClassTransient {
				t.Errorf("%s %d: %q becomes %q", m, status, plain, keyed)
			}
		}
	}
}

func TestNewHTTPError(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	make1 := func(method, u string, status int, header ...string) *http.Response {
		h := http.Header{}
		for i := 0; i+1 < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		req, err := http.NewRequest(method, u, nil)
		if err != nil {
			t.Fatal(err)
		}
		return &http.Response{StatusCode: status, Header: h, Request: req}
	}
	const envoy = "upstream connect error or disconnect/reset before headers. reset reason: "
	for _, tc := range []struct {
		name       string
		resp       *http.Response
		body       string
		idempotent bool
		class      retry.Class
		after      time.Duration
		hasAfter   bool
		text       string
	}{
		{
			name: "secrets stay out", resp: make1("POST", "https://u:pw@pay.test:8443/refund?token=s3#frag", 500), body: "oh\n no",
			class: retry.ClassUnknown, text: "POST https://pay.test:8443/refund: status 500 Internal Server Error: oh no",
		},
		{
			name: "seconds", resp: make1("POST", "http://a/", 429, "Retry-After", "7"),
			class: retry.ClassTransient, after: 7 * time.Second, hasAfter: true, text: "POST http://a/: status 429 Too Many Requests",
		},
		{
			name: "date by now", resp: make1("POST", "http://a/", 503, "Retry-After", "Sun, 01 Mar 2026 12:00:05 GMT"),
			class: retry.ClassTransient, after: 5 * time.Second, hasAfter: true, text: "POST http://a/: status 503 Service Unavailable",
		},
		{
			name: "date by the server's clock", resp: make1("POST", "http://a/", 503,
				"Retry-After", "Sun, 01 Mar 2026 15:00:05 GMT", "Date", "Sun, 01 Mar 2026 15:00:00 GMT"),
			class: retry.ClassTransient, after: 5 * time.Second, hasAfter: true, text: "POST http://a/: status 503 Service Unavailable",
		},
		{
			name: "at once", resp: make1("POST", "http://a/", 503, "Retry-After", "0", "Date", "garbage"),
			class: retry.ClassTransient, hasAfter: true, text: "POST http://a/: status 503 Service Unavailable",
		},
		{
			name: "garbage wait", resp: make1("GET", "http://a/", 500, "Retry-After", "soon"),
			class: retry.ClassTransient, text: "GET http://a/: status 500 Internal Server Error",
		},
		{
			name: "empty method is GET", resp: &http.Response{StatusCode: 500, Request: &http.Request{}},
			class: retry.ClassTransient, text: "GET status 500 Internal Server Error",
		},
		{
			name: "request not known", resp: &http.Response{StatusCode: 599},
			class: retry.ClassUnknown, text: "status 599",
		},
		{
			name: "too large", resp: make1("POST", "http://a/", 413),
			class: retry.ClassPermanent, text: "POST http://a/: status 413 Request Entity Too Large",
		},
		{
			name: "too large for now", resp: make1("POST", "http://a/", 413, "Retry-After", "1"),
			class: retry.ClassTransient, after: time.Second, hasAfter: true, text: "POST http://a/: status 413 Request Entity Too Large",
		},
		{
			name: "proxy lost the backend", resp: make1("POST", "http://a/", 503), body: envoy + "connection termination",
			class: retry.ClassUnknown, text: "POST http://a/: status 503 Service Unavailable: " + envoy + "connection termination",
		},
		{
			name: "proxy lost the backend, safe to repeat", resp: make1("POST", "http://a/", 503), body: envoy + "connection termination",
			idempotent: true, class: retry.ClassTransient, text: "POST http://a/: status 503 Service Unavailable: " + envoy + "connection termination",
		},
		{
			name: "proxy never reached the backend", resp: make1("POST", "http://a/", 503), body: envoy + "remote connection failure",
			class: retry.ClassTransient, text: "POST http://a/: status 503 Service Unavailable: " + envoy + "remote connection failure",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := retry.NewHTTPError(tc.resp, tc.body, now, tc.idempotent)
			if got := retry.MarkedClass(err); got != tc.class {
				t.Errorf("class %q, want %q", got, tc.class)
			}
			after, ok := retry.RetryAfter(err)
			if after != tc.after || ok != tc.hasAfter {
				t.Errorf("RetryAfter %v %v, want %v %v", after, ok, tc.after, tc.hasAfter)
			}
			if err.Error() != tc.text {
				t.Errorf("text %q, want %q", err, tc.text)
			}
			var he *retry.HTTPError
			if !errors.As(err, &he) {
				t.Fatalf("no *HTTPError in %T", err)
			}
			if he.Status != tc.resp.StatusCode || he.RetryAfter != tc.after || he.HasRetryAfter != tc.hasAfter || he.Body != tc.body {
				t.Errorf("fields %+v", he)
			}
		})
	}

	if err := retry.NewHTTPError(make1("POST", "http://a/", 204, "Retry-After", "1"), "", now, false); err != nil {
		t.Errorf("204: %v, want nil", err)
	}
	long := retry.NewHTTPError(make1("POST", "http://a/", 400), strings.Repeat("é", 1<<20), now, false)
	if n := len(long.Error()); n > retry.MaxHTTPBody+200 {
		t.Errorf("a body of 2 MiB makes an error of %d bytes", n)
	}
}

// Real redirects: what the caller asked for decides, not what was asked last.
func TestNewHTTPErrorAfterRedirect(t *testing.T) {
	mux := http.NewServeMux()
	for _, code := range []int{302, 303, 307} {
		mux.Handle("/"+strconv.Itoa(code), http.RedirectHandler("/broken", code))
	}
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 404) })
	s := httptest.NewServer(mux)
	defer s.Close()
	defer s.Client().CloseIdleConnections()

	for _, tc := range []struct {
		code       int
		method     string
		idempotent bool
		want       retry.Class
	}{
		{303, "POST", false, retry.ClassUnknown},   // done, and the page that tells is broken
		{302, "POST", false, retry.ClassUnknown},   //
		{303, "POST", true, retry.ClassPermanent},  // the answer counts
		{307, "POST", false, retry.ClassPermanent}, // the POST itself went on and was refused
		{303, "GET", false, retry.ClassPermanent},
	} {
		req, err := http.NewRequest(tc.method, s.URL+"/"+strconv.Itoa(tc.code), strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		got := retry.NewHTTPError(resp, string(body), time.Time{}, tc.idempotent)
		if c := retry.MarkedClass(got); c != tc.want {
			t.Errorf("%s through %d: %q, want %q (%v)", tc.method, tc.code, c, tc.want, got)
		}
		var he *retry.HTTPError
		if errors.As(got, &he) && he.Method != tc.method {
			t.Errorf("%s through %d: told as %s", tc.method, tc.code, he.Method)
		}
	}
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(1994, 11, 6, 8, 49, 0, 500_000_000, time.UTC)
	for _, tc := range []struct {
		value string
		want  time.Duration
		ok    bool
	}{
		{"0", 0, true},
		{"120", 2 * time.Minute, true},
		{" 120\t", 2 * time.Minute, true},
		{"0007", 7 * time.Second, true},
		{"315360000", retry.MaxDelay, true},
		{"315360001", retry.MaxDelay, true},
		{"9223372036", retry.MaxDelay, true},
		{"9223372036854775807", retry.MaxDelay, true},
		{"9223372036854775808", retry.MaxDelay, true},
		{strings.Repeat("9", 1000), retry.MaxDelay, true},
		{"Sun, 06 Nov 1994 08:49:37 GMT", 36500 * time.Millisecond, true},
		{"Sunday, 06-Nov-94 08:49:37 GMT", 36500 * time.Millisecond, true},
		{"Sun Nov  6 08:49:37 1994", 36500 * time.Millisecond, true},
		{"Sun, 06 Nov 1994 08:49:00 GMT", 0, true},
		{"Thu, 01 Jan 1970 00:00:00 GMT", 0, true},
		{"Fri, 31 Dec 9999 23:59:59 GMT", retry.MaxDelay, true},
		{"", 0, false},
		{" ", 0, false},
		{"-1", 0, false},
		{"+1", 0, false},
		{"1.5", 0, false},
		{"1e3", 0, false},
		{"0x10", 0, false},
		{"1 0", 0, false},
		{"1,2", 0, false},
		{"١", 0, false}, // a digit, but not an ASCII one
		{"soon", 0, false},
		{"Sun, 06 Nov 1994 08:49:37 EST", 0, false},
		{"Sunday, 06-Nov-94 08:49:37 EST", 0, false},
		{"Sun, 31 Feb 1994 08:49:37 GMT", 0, false},
		{"1994-11-06T08:49:37Z", 0, false},
	} {
		got, ok := retry.ParseRetryAfter(tc.value, now)
		if got != tc.want || ok != tc.ok {
			t.Errorf("ParseRetryAfter(%.40q) = %v, %v; want %v, %v", tc.value, got, ok, tc.want, tc.ok)
		}
	}
	if got, ok := retry.ParseRetryAfter("Sun, 06 Nov 1994 08:49:37 GMT", time.Time{}); ok {
		t.Errorf("a date without a now: %v", got)
	}
	if got, ok := retry.ParseRetryAfter("3", time.Time{}); !ok || got != 3*time.Second {
		t.Errorf("seconds without a now: %v, %v", got, ok)
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, s := range []string{
		"", "0", "120", "-1", "+1", "1.5", " 7 ", "99999999999999999999", "9223372036854775807",
		"Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
		"Fri, 31 Dec 9999 23:59:59 GMT", "Sun, 06 Nov 1994 08:49:37 EST", "١٢", "1\x00", "soon",
	} {
		f.Add(s, int64(784_111_740))
	}
	f.Add("Sun, 06 Nov 1994 08:49:37 GMT", int64(-1<<62))
	f.Fuzz(func(t *testing.T, value string, unix int64) {
		now := time.Unix(unix, 0)
		d, ok := retry.ParseRetryAfter(value, now)
		if d < 0 || d > retry.MaxDelay {
			t.Fatalf("out of range: %v", d)
		}
		if !ok && d != 0 {
			t.Fatalf("a wait of %v that is none", d)
		}
		trimmed := strings.Trim(value, " \t")
		digits := trimmed != "" && !slices.ContainsFunc([]byte(trimmed), func(b byte) bool { return b < '0' || b > '9' })
		if digits && !ok {
			t.Fatal("whole seconds refused")
		}
		if ok && strings.ContainsAny(trimmed, "-+") && !strings.Contains(trimmed, "GMT") {
			t.Fatal("a sign accepted")
		}
		if again, ok2 := retry.ParseRetryAfter("\t"+value+" ", now.In(time.FixedZone("x", 3600))); again != d || ok2 != ok {
			t.Fatalf("blanks or the zone of now change %v, %v to %v, %v", d, ok, again, ok2)
		}
	})
}
