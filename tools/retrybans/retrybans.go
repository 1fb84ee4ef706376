// Package retrybans is a vet-style analyser for package retry and its subpackages: a decision there must follow from
// recorded facts alone, so that it can be recomputed later. It refuses clocks, random sources, I/O and imports of the
// rest of the project. Test files are free to use all of that.
package retrybans

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const project = "github.com/spillway-mq/spillway"

// Analyzer reports each use of a clock, a random source or I/O. Run it on ./retry/... only.
var Analyzer = &analysis.Analyzer{
	Name: "retrybans",
	Doc:  "refuse clocks, random sources, I/O and project imports where decisions are made",
	Run:  run,
}

// Imports are allowed by name: what is not listed may do I/O, and adding a line here is a decision to look at.
var pure = set(
	"bytes", "cmp", "context", "crypto/sha256", "encoding/base64", "encoding/binary", "encoding/hex", "encoding/json",
	"errors", "fmt", "hash/fnv", "iter", "maps", "math", "math/big", "math/bits", "reflect", "regexp", "slices", "sort",
	"strconv", "strings", "sync", "time", "unicode", "unicode/utf8",
)

// Classifiers (files named classify*.go) look at errors and headers of these packages; what they may call there is
// limited below.
var classifying = set(
	"crypto/tls", "crypto/x509", "database/sql/driver", "io", "net", "net/http", "net/textproto", "net/url", "syscall",
)

// Functions and methods that reach outside or read the clock, by package.
var banned = map[string]func(name string, method bool) bool{
	"time": func(name string, method bool) bool {
		return !method && set("Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker")[name]
	},
	"context": func(name string, _ bool) bool {
		return set("WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause")[name]
	},
	// Fprint and its like are fine: a writer that does I/O cannot be had here.
	"fmt": func(name string, _ bool) bool {
		return set("Print", "Printf", "Println", "Scan", "Scanf", "Scanln")[name]
	},
	"net": func(name string, _ bool) bool {
		return prefixed(name, "Dial", "Listen", "Lookup", "Resolve", "File", "Interface", "Read", "Write", "Accept")
	},
	"net/http": func(name string, method bool) bool {
		if method { // of Header and Cookie; Client, Transport, Server and Request stay out
			return set("Do", "Get", "Head", "Post", "PostForm", "RoundTrip", "ListenAndServe", "ListenAndServeTLS", "Serve", "ServeTLS", "Write", "WriteProxy")[name]
		}
		return !set("StatusText", "ParseTime", "CanonicalHeaderKey")[name]
	},
	"crypto/tls": func(name string, _ bool) bool {
		return prefixed(name, "Dial", "Listen", "Handshake", "Read", "Write", "Load") || set("Client", "Server", "NewListener")[name]
	},
	"crypto/x509": func(name string, _ bool) bool { return prefixed(name, "SystemCertPool", "Create", "Verify") },
	"database/sql/driver": func(name string, _ bool) bool {
		return prefixed(name, "Open", "Connect", "Exec", "Query", "Prepare", "Begin", "Commit", "Ping")
	},
	"io": func(name string, method bool) bool { return !method },
	// Errno's methods say what an error is; every function of the package is a system call or close to one.
	"syscall": func(_ string, method bool) bool { return !method },
}

// Methods that share a name with a banned one and only read a value. The key is the receiver's type.
var harmless = map[string]map[string]bool{
	"net/http.Header": set("Get", "Values"),
}

func run(pass *analysis.Pass) (any, error) {
	for _, file := range pass.Files {
		name := filepath.Base(pass.Fset.Position(file.Package).Filename)
		if strings.HasSuffix(name, "_test.go") || !strings.HasSuffix(name, ".go") {
			continue
		}
		checkImports(pass, file, strings.HasPrefix(name, "classify"))
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				checkUse(pass, id)
			}
			return true
		})
	}
	return nil, nil
}

func checkImports(pass *analysis.Pass, file *ast.File, classifier bool) {
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		switch {
		case pure[path] || path == project+"/retry" || strings.HasPrefix(path, project+"/retry/"):
		case path == project || strings.HasPrefix(path, project+"/"):
			pass.Reportf(spec.Pos(), "retry imports nothing of the project: %s", path)
		case classifying[path]:
			if !classifier {
				pass.Reportf(spec.Pos(), "%s belongs in a file named classify*.go", path)
			}
		default:
			pass.Reportf(spec.Pos(), "retry must not import %s: no clock, no random source, no I/O (allowed packages are listed in tools/retrybans)", path)
		}
	}
}

// checkUse looks at uses, not only at calls: a clock kept in a variable is still a clock.
func checkUse(pass *analysis.Pass, id *ast.Ident) {
	fn, ok := pass.TypesInfo.Uses[id].(*types.Func)
	if !ok || fn.Pkg() == nil {
		return
	}
	ban := banned[fn.Pkg().Path()]
	if ban == nil {
		return
	}
	recv := fn.Signature().Recv()
	if recv != nil && harmless[receiver(recv.Type())][fn.Name()] {
		return
	}
	if ban(fn.Name(), recv != nil) {
		pass.Reportf(id.Pos(), "retry must not use %s: a decision reads no clock, no random source and no I/O", fn.FullName())
	}
}

func receiver(t types.Type) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	return t.String()
}

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

func prefixed(name string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
