package topology

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteText writes the plan as tables for people: every entity with its type
// and arguments, then every binding. It returns the writer's error.
func (p Plan) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "topology %s of service %s: %s queues, mode %s\n", p.Version, p.Service, p.Kind, p.Mode)
	fmt.Fprintf(t, "%d exchanges, %d queues, %d bindings, all durable\n", len(p.Exchanges), len(p.Queues), len(p.Bindings))

	fmt.Fprint(t, "\nEXCHANGE\tTYPE\tARGUMENTS\tROLE\n")
	for _, e := range p.Exchanges {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", e.Name, e.Type, e.Arguments, e.Role)
	}
	fmt.Fprint(t, "\nQUEUE\tTYPE\tARGUMENTS\tROLE\n")
	for _, q := range p.Queues {
		rest := make(Arguments, len(q.Arguments))
		for k, v := range q.Arguments {
			if k != "x-queue-type" {
				rest[k] = v
			}
		}
		fmt.Fprintf(t, "%s\t%v\t%s\t%s\n", q.Name, q.Arguments["x-queue-type"], rest, q.Role)
	}
	fmt.Fprint(t, "\nBINDING FROM\tKEY\tTO\n")
	for _, b := range p.Bindings {
		key := b.Key
		if key == "" {
			key = "(any)"
		}
		fmt.Fprintf(t, "%s\t%s\t%s %s\n", b.Source, key, b.DestinationKind, b.Destination)
	}
	return t.Flush()
}

// String is "name=value name=value" in order of name, or "-" for none.
func (a Arguments) String() string {
	if len(a) == 0 {
		return "-"
	}
	parts := make([]string, 0, len(a))
	for _, k := range a.sortedKeys() {
		parts = append(parts, fmt.Sprintf("%s=%v", k, a[k]))
	}
	return strings.Join(parts, " ")
}
