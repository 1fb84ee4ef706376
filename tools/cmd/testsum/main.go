// Command testsum reads `go test -json` on stdin, prints what matters of it, and ends with "N passed, N failed". It
// fails if a test failed or if no test ran.
package main

import (
	"fmt"
	"os"

	"github.com/spillway-mq/spillway/tools/testsum"
)

func main() {
	counts, err := testsum.Copy(os.Stdout, os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	fmt.Println(counts)
	if counts.Failed > 0 || counts.Passed+counts.Skipped == 0 {
		os.Exit(1)
	}
}
