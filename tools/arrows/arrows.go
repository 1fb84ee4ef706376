// Package arrows checks which part of the project imports which: arrows point down only, from cmd through the helpers
// and the consumer to persistence and topology, and from these to retry.
package arrows

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Package is what Check needs of one package: the fields of `go list -json`.
type Package struct {
	ImportPath string
	Imports    []string // of its non-test files
}

// Allowed says for each part (the first element of a package's path below the module) which other parts it may import.
// "*" stands for all of them. The part internal is transparent: what an internal package imports counts as imported by
// each package that uses it.
type Allowed map[string][]string

// Spillway is the project's layout. Tests are not bound by it: a test of publisher may run a consumer.
func Spillway() Allowed {
	return Allowed{
		"retry":       {},
		"retryhttp":   {"retry"},
		"topology":    {"retry", "internal"},
		"persistence": {"retry", "internal"},
		"internal":    {"publisher", "consumer", "reaper", "dlx", "persistence", "topology", "retryhttp", "retry"},
		"publisher":   {"persistence", "topology", "retry", "internal"},
		"reaper":      {"persistence", "topology", "retry", "internal"},
		"dlx":         {"persistence", "topology", "retry", "internal"},
		"consumer":    {"reaper", "dlx", "persistence", "topology", "retry", "internal"},
		"cmd":         {"*"},
		// What a reader copies from examples must compile outside this module, so nothing internal.
		"examples": {"publisher", "consumer", "reaper", "dlx", "persistence", "topology", "retryhttp", "retry"},
	}
}

// Read decodes the output of `go list -json`: JSON values one after the other.
func Read(r io.Reader) ([]Package, error) {
	var pkgs []Package
	for dec := json.NewDecoder(r); ; {
		var p Package
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return pkgs, nil
		case err != nil:
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
}

// Check returns one line for each import that points the wrong way, and for each part that the layout does not name.
func Check(module string, allowed Allowed, pkgs []Package) []string {
	imports := make(map[string][]string, len(pkgs))
	for _, p := range pkgs {
		imports[p.ImportPath] = p.Imports
	}
	var found []string
	for _, p := range pkgs {
		from, ok := part(module, p.ImportPath)
		if !ok {
			continue
		}
		may, known := allowed[from]
		if !known {
			found = append(found, fmt.Sprintf("%s: the layout has no part %q; name it in tools/arrows", p.ImportPath, from))
			continue
		}
		seen := map[string]bool{}
		var follow func(path, via string)
		follow = func(path, via string) {
			to, ok := part(module, path)
			if !ok || seen[path] {
				return
			}
			seen[path] = true
			if to != from && !slices.Contains(may, "*") && !slices.Contains(may, to) {
				found = append(found, fmt.Sprintf("%s imports %s%s: %s may import %s", p.ImportPath, path, via, from, list(may)))
				return
			}
			if to == "internal" && from != "internal" {
				for _, next := range imports[path] {
					follow(next, " through "+strings.TrimPrefix(path, module+"/")+via)
				}
			}
		}
		for _, path := range p.Imports {
			follow(path, "")
		}
	}
	return found
}

func part(module, path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, module+"/")
	if !ok {
		return "", false
	}
	first, _, _ := strings.Cut(rest, "/")
	return first, true
}

func list(parts []string) string {
	if len(parts) == 0 {
		return "no other part"
	}
	return strings.Join(parts, ", ") + " only"
}
