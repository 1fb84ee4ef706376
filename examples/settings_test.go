package examples_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const settingsHead = `# Settings of retry-consumer

Environment variables, read by every command. ` + "`retry-consumer config`" + ` prints this list with the values in use. A variable that is set to
nothing counts as not set. Variables that begin with SPILLWAY_ and are none of these are named in a warning.

This file is made from what ` + "`retry-consumer config`" + ` says and a test compares it; to write it anew:
` + "`UPDATE=1 go test -run TestSettings ./examples/`" + `.

`

type settingEntry struct{ Name, Default, Meaning, Allowed string }

// docs/settings.md is what `retry-consumer config` says, and the README's table says nothing else.
func TestSettings(t *testing.T) {
	entries := settings(t)
	var b strings.Builder
	b.WriteString(settingsHead + "| variable | default | meaning | allowed |\n|---|---|---|---|\n")
	for _, e := range entries {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.Name, code(e.Default), cell(e.Meaning), cell(e.Allowed))
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("../docs/settings.md", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, "../docs/settings.md") != b.String() {
		t.Error("docs/settings.md is stale: UPDATE=1 go test -run TestSettings ./examples/")
	}
	rows := 0
	for line := range strings.Lines(read(t, "../README.md")) {
		if !strings.HasPrefix(line, "| `SPILLWAY_") {
			continue
		}
		rows++
		cells := strings.Split(line, "|") // the first is empty
		name := strings.Trim(cells[1], "` ")
		i := slices.IndexFunc(entries, func(e settingEntry) bool { return e.Name == name })
		switch {
		case i < 0:
			t.Errorf("the README names %s, which is no setting", name)
		case strings.Trim(cells[2], "` ") != entries[i].Default:
			t.Errorf("the README says that the default of %s is %s; it is %s", name, cells[2], code(entries[i].Default))
		}
	}
	if rows == 0 {
		t.Error("the README has no table of settings")
	}
}

// settings asks the command, without the settings of this process: values are none of this test's business.
func settings(t *testing.T) []settingEntry {
	t.Helper()
	file := filepath.Join(t.TempDir(), "retry-consumer")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../cmd/retry-consumer").CombinedOutput(); err != nil {
		t.Fatalf("build retry-consumer: %v\n%s", err, out)
	}
	c := exec.CommandContext(t.Context(), file, "config", "-o", "json")
	c.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "SPILLWAY_") })
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var entries []settingEntry
	if err := json.Unmarshal(out, &entries); err != nil || len(entries) == 0 {
		t.Fatalf("retry-consumer config -o json: %v, %d entries", err, len(entries))
	}
	return entries
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
