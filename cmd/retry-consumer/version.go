package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/topology"
)

// version is set by the linker: -ldflags "-X main.version=v1.2.3".
var version string

func (a *app) versionCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "version", Short: "Print the versions of this build", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Schema   int    `json:"schema"`
				Topology string `json:"topology"`
			}{buildVersion(), runtime.Version(), persistence.SchemaVersion, topology.Version}
			return a.print(output, v, func(p *printer) {
				p.line("retry-consumer %s", v.Version)
				p.line("go             %s", v.Go)
				p.line("schema         %d", v.Schema)
				p.line("topology       %s", v.Topology)
			})
		},
	}
	outputFlag(c, &output)
	return c
}

// buildVersion is the linker's word, else the module's or the commit's, where the build knows it.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if commit == "" {
		return "devel"
	}
	return fmt.Sprintf("devel-%s%s", commit, dirty)
}
