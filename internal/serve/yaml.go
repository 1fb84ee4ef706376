package serve

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/spillway-mq/spillway/internal/nearest"
	"github.com/spillway-mq/spillway/retry"
)

// reader walks a YAML tree, notes where each field stands and gathers all problems. It decodes by hand, because a
// decoder stops at the first problem and forgets the places.
type reader struct {
	anchors  map[string]ast.Node
	places   map[string]place
	bad      map[string]bool // fields that have a problem
	problems []Problem
}

type place struct{ line, col int }

const durations = "a duration such as 500ms, 1.5s or 10m"

// parseYAML returns the root of the only document in data, or nil with a problem noted.
func (r *reader) parseYAML(data []byte) (root ast.Node) {
	defer func() {
		// The parser is a dependency that reads arbitrary input: a panic in it must be an error about the file.
		if p := recover(); p != nil {
			root = nil
			r.add(place{}, "file", "this text", fmt.Sprintf("YAML (the parser gave up: %v)", p))
		}
	}()
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		at, msg := place{}, err.Error()
		var ye yaml.Error
		if errors.As(err, &ye) {
			at, msg = tokenPlace(ye.GetToken()), ye.GetMessage()
		}
		r.add(at, "file", "this text", "YAML: "+msg)
		return nil
	}
	var docs []ast.Node
	for _, d := range file.Docs {
		if d.Body != nil {
			docs = append(docs, d.Body)
		}
	}
	switch {
	case len(docs) == 0:
		r.add(place{1, 1}, "scenes", "nothing", "a list with at least one scene")
		return nil
	case len(docs) > 1:
		r.add(placeOf(docs[1]), "file", "a second document", "one YAML document")
		return nil
	}
	ast.Walk(anchorVisitor{r.anchors}, docs[0])
	return docs[0]
}

type anchorVisitor struct{ anchors map[string]ast.Node }

// Visit implements ast.Visitor.
func (v anchorVisitor) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok {
		v.anchors[scalarText(a.Name)] = a.Value
	}
	return v
}

// resolve steps through anchors, aliases and tags to the value. Aliases are followed a few steps only, so that one that
// names itself ends.
func (r *reader) resolve(n ast.Node) ast.Node {
	for range 20 {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.TagNode:
			n = x.Value
		case *ast.AliasNode:
			n = r.anchors[scalarText(x.Value)]
		default:
			return n
		}
	}
	return nil
}

func (r *reader) add(at place, field, value, allowed string) {
	r.bad[field] = true
	if field == "" {
		field = "file"
	}
	r.problems = append(r.problems, Problem{Line: at.line, Col: at.col, Field: field, Value: value, Allowed: allowed})
}

// wrong notes that the value of field, at n, is not allowed.
func (r *reader) wrong(n ast.Node, field, allowed string) {
	r.add(r.where(field, n), field, r.show(n), allowed)
}

// where is the place of a node, or of the field where the node is none.
func (r *reader) where(field string, n ast.Node) place {
	if p := placeOf(n); p != (place{}) {
		return p
	}
	return r.placeOfField(field)
}

// placeOfField is where field stands, or the innermost of its parents that stands anywhere.
func (r *reader) placeOfField(field string) place {
	for field != "" {
		if p, ok := r.places[field]; ok {
			return p
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return r.places[""]
}

// key is an entry of a mapping.
type entry struct {
	key   string
	at    place // of the key
	value ast.Node
}

// mapping returns the entries of a mapping in the order of the file. Of a name that stands twice the later is a problem. ok is
// false, with the problem noted, where n is no mapping.
func (r *reader) mapping(n ast.Node, field, allowed string) (out []entry, ok bool) {
	m, ok := r.resolve(n).(ast.MapNode)
	if !ok {
		r.wrong(n, field, allowed)
		return nil, false
	}
	seen := map[string]place{}
	for it := m.MapRange(); it.Next(); {
		e := entry{key: scalarText(it.Key()), at: placeOf(it.Key()), value: it.Value()}
		name := join(field, e.key)
		if first, twice := seen[e.key]; twice {
			r.add(e.at, name, "given twice", fmt.Sprintf("given once (line %d has it too)", first.line))
			continue
		}
		seen[e.key] = e.at
		if r.places[name] = placeOf(e.value); r.places[name] == (place{}) {
			r.places[name] = e.at
		}
		out = append(out, e)
	}
	return out, true
}

// object reads a mapping with known fields. It reports whether there was one.
func (r *reader) object(n ast.Node, field string, fields map[string]func(ast.Node, string)) bool {
	var names []string
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	list := strings.Join(names, ", ")
	entries, ok := r.mapping(n, field, "a mapping with "+list)
	for _, e := range entries {
		if read := fields[e.key]; read != nil {
			read(e.value, join(field, e.key))
			continue
		}
		r.add(e.at, join(field, e.key), "unknown field", "one of "+list+nearest.Hint(e.key, names))
	}
	return ok
}

// list reads a sequence.
func (r *reader) list(n ast.Node, field, allowed string, read func(n ast.Node, field string)) {
	s, ok := r.resolve(n).(*ast.SequenceNode)
	if !ok {
		r.wrong(n, field, allowed)
		return
	}
	for i, v := range s.Values {
		name := fmt.Sprintf("%s[%d]", field, i)
		r.places[name] = placeOf(v)
		read(v, name)
	}
}

// text reads a string. A number or a truth value is one only where loose is set.
func (r *reader) text(n ast.Node, field, allowed string, loose bool) (string, bool) {
	switch x := r.resolve(n).(type) {
	case *ast.StringNode:
		return x.Value, true
	case *ast.LiteralNode:
		return x.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		if loose {
			return scalarText(x), true
		}
		allowed += " (in quotes, if this is meant as text)"
	}
	r.wrong(n, field, allowed)
	return "", false
}

func (r *reader) duration(n ast.Node, field, allowed string) (time.Duration, bool) {
	switch x := r.resolve(n).(type) {
	case *ast.StringNode:
		if d, err := time.ParseDuration(strings.TrimSpace(x.Value)); err == nil {
			return d, true
		}
	case *ast.IntegerNode:
		if scalarText(x) == "0" {
			return 0, true
		}
	}
	r.wrong(n, field, allowed)
	return 0, false
}

func (r *reader) integer(n ast.Node, field string, low, high int) (int, bool) {
	if x, ok := r.resolve(n).(*ast.IntegerNode); ok {
		if i, err := strconv.Atoi(scalarText(x)); err == nil && i >= low && i <= high {
			return i, true
		}
	}
	r.wrong(n, field, fmt.Sprintf("a whole number from %d to %d", low, high))
	return 0, false
}

func (r *reader) boolean(n ast.Node, field string) (value, ok bool) {
	if x, ok := r.resolve(n).(*ast.BoolNode); ok {
		return x.Value, true
	}
	r.wrong(n, field, "true or false")
	return false, false
}

// show is how a wrong value is named.
func (r *reader) show(n ast.Node) string {
	if a, ok := n.(*ast.AliasNode); ok && r.resolve(n) == nil {
		return "*" + scalarText(a.Value)
	}
	switch x := r.resolve(n).(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case ast.MapNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode:
		return retry.NewFieldError("", x.Value, "").Value
	case *ast.LiteralNode:
		return retry.NewFieldError("", x.Value.Value, "").Value
	default:
		return retry.CutString(scalarText(x), 80)
	}
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// scalarText is a scalar as it stands in the file, without quotes.
func scalarText(n ast.Node) string {
	switch x := n.(type) {
	case nil:
		return ""
	case *ast.StringNode:
		return x.Value
	case *ast.MappingKeyNode:
		return scalarText(x.Value)
	}
	if t := n.GetToken(); t != nil {
		return t.Value
	}
	return ""
}

func placeOf(n ast.Node) place {
	switch x := n.(type) {
	case nil:
		return place{}
	case *ast.MappingNode:
		// The token of a mapping is its first colon.
		if !x.IsFlowStyle && len(x.Values) > 0 {
			return placeOf(x.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return placeOf(x.Key)
	}
	return tokenPlace(n.GetToken())
}

func tokenPlace(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{}
	}
	return place{t.Position.Line, t.Position.Column}
}
