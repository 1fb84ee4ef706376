// Package testsum turns the stream of `go test -json` into what a person wants to read: one line for each package, the
// whole output of what failed, and a last line that counts tests.
package testsum

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Counts are of tests (subtests and examples included). A package that fails outside its tests (it does not build, it
// panics, it leaks) counts as one failure more, so that Failed is 0 only for a run that passed.
type Counts struct{ Passed, Failed, Skipped int }

func (c Counts) String() string {
	if c.Skipped > 0 {
		return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
	}
	return fmt.Sprintf("%d passed, %d failed", c.Passed, c.Failed)
}

type event struct {
	Action, Package, ImportPath, Test, Output string
}

type name struct{ pkg, test string }

// Copy reads the stream to its end and writes the report, without the counts. Lines that are no events are passed on.
func Copy(w io.Writer, r io.Reader) (Counts, error) {
	var c Counts
	var open []name // tests that began and did not end, in the order of their start
	output := map[name]*strings.Builder{}
	failures := map[string]int{}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
			if line != "" {
				fmt.Fprintln(w, strings.TrimSuffix(line, "\n"))
			}
			if err != nil {
				return c, end(err)
			}
			continue
		}
		id := name{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "run":
			open = append(open, id)
			output[id] = &strings.Builder{}
		case "output":
			if b := output[id]; b != nil {
				b.WriteString(e.Output)
			} else if noteworthy(e.Output) {
				fmt.Fprint(w, e.Output)
			}
		case "pass", "skip", "fail":
			if e.Test == "" {
				if e.Action == "fail" {
					// What a panic or a timeout cut off is told with its output.
					for _, o := range open {
						if o.pkg == e.Package {
							fmt.Fprint(w, output[o])
						}
					}
					if failures[e.Package] == 0 {
						c.Failed++
					}
				}
				open = forget(open, output, e.Package)
				break
			}
			switch e.Action {
			case "pass":
				c.Passed++
			case "skip":
				c.Skipped++
				fmt.Fprint(w, output[id])
			case "fail":
				c.Failed++
				failures[e.Package]++
				fmt.Fprint(w, output[id])
			}
			delete(output, id)
			open = remove(open, id)
		}
		if err != nil {
			return c, end(err)
		}
	}
}

// noteworthy leaves out the lines PASS and FAIL that go test prints before each package's own line.
func noteworthy(line string) bool { return line != "PASS\n" && line != "FAIL\n" }

func forget(open []name, output map[name]*strings.Builder, pkg string) []name {
	var kept []name
	for _, o := range open {
		if o.pkg == pkg {
			delete(output, o)
		} else {
			kept = append(kept, o)
		}
	}
	return kept
}

func remove(open []name, id name) []name {
	for i, o := range open {
		if o == id {
			return append(open[:i:i], open[i+1:]...)
		}
	}
	return open
}

func end(err error) error {
	if err == io.EOF {
		return nil
	}
	return fmt.Errorf("read the output of go test: %w", err)
}
