package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand"        // want `retry must not import math/rand:`
	rv2 "math/rand/v2" // want `retry must not import math/rand/v2:`
	"net/http"         // want `net/http belongs in a file named classify\*\.go`
	"os"               // want `retry must not import os:`
	"time"

	crand "crypto/rand" // want `retry must not import crypto/rand:`
	"database/sql"      // want `retry must not import database/sql:`
	_ "os/exec"         // want `retry must not import os/exec:`

	_ "github.com/spillway-mq/spillway/retry/grid"
	_ "github.com/spillway-mq/spillway/topology" // want `retry imports nothing of the project: github.com/spillway-mq/spillway/topology`
)

var (
	_ = rand.Int
	_ = rv2.Int
	_ = os.Args
	_ = crand.Reader
	_ sql.NullString
	_ = http.StatusOK
)

var clock = time.Now // want `retry must not use time.Now:`

func bad(ctx context.Context) {
	_ = time.Since(time.Time{})        // want `time.Since`
	_ = time.Until(time.Time{})        // want `time.Until`
	time.Sleep(1)                      // want `time.Sleep`
	<-time.After(1)                    // want `time.After`
	time.AfterFunc(1, nil)             // want `time.AfterFunc`
	_ = time.Tick(1)                   // want `time.Tick`
	_ = time.NewTimer(1)               // want `time.NewTimer`
	_ = time.NewTicker(1)              // want `time.NewTicker`
	_, _ = context.WithTimeout(ctx, 1) // want `context.WithTimeout`
	fmt.Println("here")                // want `fmt.Println`
}

func good(now time.Time, d time.Duration) (bool, error) {
	if now.Add(d).After(time.Unix(0, 0).UTC()) { // the method After compares, the function After waits
		return true, fmt.Errorf("late: %w", errors.New("x"))
	}
	_ = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := time.Parse(time.RFC3339, "")
	return false, err
}
