package testsum_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-mq/spillway/tools/testsum"
)

// The streams are those of the go command that runs this test, so that a change of its format is noticed.
func TestCopy(t *testing.T) {
	const head = "package p\nimport \"testing\"\n"
	for name, tc := range map[string]struct {
		test   string
		want   testsum.Counts
		prints []string
		hides  []string
	}{
		"passes": {
			test:   head + `func TestA(t *testing.T) { t.Log("quiet"); t.Run("x", func(*testing.T) {}) }`,
			want:   testsum.Counts{Passed: 2},
			prints: []string{"ok  \tp\t"},
			hides:  []string{"quiet", "=== RUN"},
		},
		"fails and skips": {
			test: head + `func TestA(t *testing.T) { t.Error("loud") }
				func TestB(t *testing.T) { t.Skip("why") }
				func TestC(t *testing.T) { t.Log("quiet") }`,
			want:   testsum.Counts{Passed: 1, Failed: 1, Skipped: 1},
			prints: []string{"loud", "--- FAIL: TestA", "why", "FAIL\tp\t"},
			hides:  []string{"quiet"},
		},
		"panics": {
			test:   head + `func TestA(t *testing.T) { println("before"); panic("loud") }`,
			want:   testsum.Counts{Failed: 1},
			prints: []string{"panic: loud", "goroutine ", "FAIL\tp\t"},
		},
		"exits": {
			test: head + `import "os"
				func TestMain(m *testing.M) { m.Run(); println("leak"); os.Exit(1) }
				func TestA(t *testing.T) {}`,
			want:   testsum.Counts{Passed: 1, Failed: 1},
			prints: []string{"leak", "FAIL\tp\t"},
		},
		"times out": {
			test:   head + `func TestA(t *testing.T) { select {} }`,
			want:   testsum.Counts{Failed: 1},
			prints: []string{"panic: test timed out", "FAIL\tp\t"},
		},
		"does not build": {
			test:   head + `func TestA(t *testing.T) { undefined() }`,
			want:   testsum.Counts{Failed: 1},
			prints: []string{"undefined: undefined", "FAIL\tp [build failed]"},
		},
		"has none": {
			test:   "package p",
			prints: []string{"no tests to run"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module p\n\ngo 1.26\n")
			write(t, filepath.Join(dir, "p_test.go"), tc.test)
			cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "-timeout", "2s", "./...")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
			stream, _ := cmd.CombinedOutput() // a failure is the point of most cases

			var out bytes.Buffer
			got, err := testsum.Copy(&out, bytes.NewReader(stream))
			if err != nil || got != tc.want {
				t.Errorf("Copy = %v, %v, want %v\n%s", got, err, tc.want, out.String())
			}
			for _, s := range tc.prints {
				if !strings.Contains(out.String(), s) {
					t.Errorf("report lacks %q:\n%s", s, out.String())
				}
			}
			for _, s := range tc.hides {
				if strings.Contains(out.String(), s) {
					t.Errorf("report has %q:\n%s", s, out.String())
				}
			}
		})
	}
}

func TestCopyPassesOtherLinesOn(t *testing.T) {
	var out bytes.Buffer
	got, err := testsum.Copy(&out, strings.NewReader("go: no such thing\n{\"a\":1}\nlast"))
	if err != nil || got != (testsum.Counts{}) || out.String() != "go: no such thing\n{\"a\":1}\nlast\n" {
		t.Errorf("Copy = %v, %v, wrote %q", got, err, out.String())
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
