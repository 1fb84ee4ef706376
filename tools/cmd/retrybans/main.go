// Command retrybans runs the analyser of the same name: retrybans ./retry/...
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"

	"github.com/spillway-mq/spillway/tools/retrybans"
)

func main() { singlechecker.Main(retrybans.Analyzer) }
