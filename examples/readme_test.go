package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every block of Go in the README is a piece of a file here, which is compiled and run. The two programs are there whole,
// and shorter than 30 lines each.
func TestREADME(t *testing.T) {
	readme := read(t, "../README.md")
	files := map[string]string{}
	for _, pattern := range []string{"*/main.go", "*_test.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			files[name] = flat(read(t, name))
		}
	}
	blocks := goBlocks(readme)
	if len(blocks) == 0 {
		t.Fatal("the README has no block of Go")
	}
	whole := map[string]bool{}
	for _, block := range blocks {
		found := false
		for name, text := range files {
			found = found || strings.Contains(text, flat(block))
			whole[name] = whole[name] || text == flat(block)
		}
		if !found {
			t.Errorf("this block of the README is in none of the examples:\n%s", block)
		}
	}
	for _, name := range []string{"publish/main.go", "consume/main.go"} {
		if !whole[name] {
			t.Errorf("examples/%s is not in the README as it is", name)
		}
		if n := strings.Count(read(t, name), "\n"); n >= 30 {
			t.Errorf("examples/%s has %d lines; the README promises fewer than 30", name, n)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func goBlocks(markdown string) []string {
	var out []string
	for {
		_, rest, ok := strings.Cut(markdown, "```go\n")
		if !ok {
			return out
		}
		block, rest, _ := strings.Cut(rest, "```")
		out, markdown = append(out, block), rest
	}
}

// flat is text without the indentation, which differs in a block that is cut out.
func flat(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}
