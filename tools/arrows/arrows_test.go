package arrows_test

import (
	"strings"
	"testing"

	"github.com/spillway-mq/spillway/tools/arrows"
)

const module = "example.org/m"

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		from string
		to   []string
		want string // part of the one finding; empty for none
	}{
		"down":                           {"consumer", []string{"reaper", "dlx", "persistence", "topology", "retry", "internal/amqp"}, ""},
		"cmd may all":                    {"cmd/x", []string{"publisher", "consumer", "internal/y"}, ""},
		"within a part":                  {"persistence/storetest", []string{"persistence"}, ""},
		"up":                             {"retry", []string{"topology"}, "m/retry imports example.org/m/topology: retry may import no other part"},
		"retry and internal":             {"retry/sub", []string{"internal/x"}, "retry may import no other part"},
		"publisher to consumer":          {"publisher", []string{"consumer"}, "m/publisher imports example.org/m/consumer"},
		"consumer to publisher":          {"consumer", []string{"publisher"}, "m/consumer imports example.org/m/publisher"},
		"store to topology":              {"persistence", []string{"topology"}, "m/persistence imports"},
		"internal to what it serves":     {"internal/amqp", []string{"topology", "consumer"}, ""},
		"internal to cmd":                {"internal/amqp", []string{"cmd/x"}, "m/internal/amqp imports"},
		"through internal":               {"publisher", []string{"internal/a"}, "m/publisher imports example.org/m/consumer through internal/b through internal/a: publisher may"},
		"down through internal":          {"consumer", []string{"internal/a"}, ""},
		"an example with internal parts": {"examples/a", []string{"internal/amqp"}, "m/examples/a imports"},
		"unknown part":                   {"util", nil, `no part "util"`},
		"a prefix is no part":            {"retry", []string{"../m2/topology"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := arrows.Package{ImportPath: module + "/" + tc.from, Imports: []string{"fmt", "example.org/m2/consumer"}}
			for _, to := range tc.to {
				p.Imports = append(p.Imports, module+"/"+to)
			}
			if name == "a prefix is no part" {
				p.Imports = []string{"example.org/m2/topology"}
			}
			got := arrows.Check(module, arrows.Spillway(), []arrows.Package{
				p,
				{ImportPath: module + "/internal/a", Imports: []string{module + "/internal/b", module + "/retry"}},
				{ImportPath: module + "/internal/b", Imports: []string{module + "/consumer", module + "/internal/a"}},
			})
			switch {
			case tc.want == "" && len(got) > 0:
				t.Errorf("found %q, want nothing", got)
			case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)):
				t.Errorf("found %q, want one finding with %q", got, tc.want)
			}
		})
	}
}

func TestRead(t *testing.T) {
	pkgs, err := arrows.Read(strings.NewReader(`{"ImportPath":"a","Imports":["b"]}` + "\n" + `{"ImportPath":"c"}`))
	if err != nil || len(pkgs) != 2 || pkgs[0].Imports[0] != "b" {
		t.Errorf("Read = %v, %v", pkgs, err)
	}
	if _, err := arrows.Read(strings.NewReader(`{"ImportPath":`)); err == nil {
		t.Error("Read of cut input: no error")
	}
}
