package retrybans_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/spillway-mq/spillway/tools/retrybans"
)

func TestAnalyzer(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), retrybans.Analyzer, "retry")
}
