package settings

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spillway-mq/spillway/internal/mask"
	"github.com/spillway-mq/spillway/internal/nearest"
)

const (
	minLease     = time.Second
	maxLease     = 24 * time.Hour
	minScan      = 100 * time.Millisecond
	maxScan      = time.Hour
	minRetention = time.Minute
)

// Entry describes one setting as it is now.
type Entry struct {
	Name    string `json:"name"`
	Default string `json:"default"`
	// Value in use, with passwords masked. A value that is wrong is shown as it is.
	Value string `json:"value"`
	// Set says that the environment names it.
	Set     bool   `json:"set"`
	Meaning string `json:"meaning"`
	Allowed string `json:"allowed"`
}

// Describe lists every setting.
func Describe() []Entry {
	var out []Entry
	t := reflect.TypeFor[Settings]()
	for i := range t.NumField() {
		f := describe(t.Field(i))
		value, isSet := f.lookup()
		if !isSet {
			value = f.def
		}
		if f.secret {
			value = mask.URL(value)
		}
		out = append(out, Entry{Name: f.name, Default: f.def, Value: value, Set: isSet, Meaning: f.desc, Allowed: f.allowed})
	}
	return out
}

// Names lists the variables' names.
func Names() []string {
	var out []string
	t := reflect.TypeFor[Settings]()
	for i := range t.NumField() {
		out = append(out, describe(t.Field(i)).name)
	}
	return out
}

// handlerNames are variables that serve gives to exec handlers. They are no settings, but a handler may call this
// program with them set.
var handlerNames = []string{"ATTEMPT", "DEADLINE", "HEADERS", "IDEMPOTENCY_KEY", "KEY", "SCENE", "TASK_ID", "UNKNOWN"}

// Unknown is a variable with our prefix that means nothing.
type Unknown struct {
	Name string
	// Meant is the setting with the nearest name; empty where none is near.
	Meant string
}

// FindUnknown lists the variables of environ (as os.Environ gives it) that begin with Prefix and are no settings.
func FindUnknown(environ []string) []Unknown {
	names := Names()
	var out []Unknown
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		short, ours := strings.CutPrefix(name, Prefix)
		if !ours || slices.Contains(names, name) || slices.Contains(handlerNames, short) {
			continue
		}
		// Compared without the prefix, which all share: it would make every name near.
		bare := make([]string, len(names))
		for i, n := range names {
			bare[i] = strings.TrimPrefix(n, Prefix)
		}
		u := Unknown{Name: name}
		if meant := nearest.Name(short, bare); meant != "" {
			u.Meant = Prefix + meant
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Unknown) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// field is a setting's tags.
type field struct {
	goName, name, def, desc, allowed string
	secret                           bool
	tag                              reflect.StructTag
}

func describe(f reflect.StructField) field {
	return field{
		goName: f.Name, name: f.Tag.Get("envconfig"), def: f.Tag.Get("default"), desc: f.Tag.Get("desc"),
		allowed: f.Tag.Get("allowed"), secret: f.Tag.Get("secret") == "true", tag: f.Tag,
	}
}

func (f field) lookup() (value string, isSet bool) {
	value = os.Getenv(f.name)
	return value, value != ""
}
