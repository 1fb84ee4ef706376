package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// outputFlag adds --output. usageErrors does not see it; print checks the value.
func outputFlag(c *cobra.Command, output *string) {
	c.Flags().StringVarP(output, "output", "o", "table", "form of the output: table or json")
}

// print writes v as JSON, or as the text that table makes.
func (a *app) print(output string, v any, table func(*printer)) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	if output == "json" {
		enc := json.NewEncoder(a.out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	p := &printer{w: a.out}
	table(p)
	return p.err
}

// checkOutput checks the flag for commands that change something before they print.
func checkOutput(output string) error {
	if output != "table" && output != "json" {
		return usageError("--output: %q is not allowed: must be table or json", output)
	}
	return nil
}

// printer writes text and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// rows writes aligned columns.
func (p *printer) rows(header []string, rows [][]string) {
	if p.err != nil {
		return
	}
	t := tabwriter.NewWriter(p.w, 0, 4, 2, ' ', 0)
	for _, cells := range append([][]string{header}, rows...) {
		for i, c := range cells {
			cells[i] = oneLine(c)
		}
		if _, p.err = fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t")); p.err != nil {
			return
		}
	}
	p.err = t.Flush()
}

// oneLine keeps a text from breaking a table or steering a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == '\t' {
			return ' '
		}
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

// clip cuts a text to n runes.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// span is a duration for people.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }
