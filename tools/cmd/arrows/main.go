// Command arrows reads `go list -json=ImportPath,Imports ./...` on stdin and fails if an import points the wrong way.
package main

import (
	"fmt"
	"os"

	"github.com/spillway-mq/spillway/tools/arrows"
)

func main() {
	pkgs, err := arrows.Read(os.Stdin)
	if err == nil && len(pkgs) == 0 {
		err = fmt.Errorf("no packages on stdin")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "arrows:", err)
		os.Exit(2)
	}
	found := arrows.Check("github.com/spillway-mq/spillway", arrows.Spillway(), pkgs)
	for _, line := range found {
		fmt.Println(line)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}
