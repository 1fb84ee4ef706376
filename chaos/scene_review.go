package main

import (
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// reviewScene must not be repeated: an outcome that nobody knows goes to a person. It has a bound of its own and a deadline,
// so that these are in play too.
func reviewScene() scene {
	p := policy()
	p.Deadline = 2 * time.Minute
	return scene{
		Scene: retry.Scene{Name: "chaos.review", Policy: p, Local: local(), Classify: retry.ClassifyNet, Concurrency: 10},
		once:  true, handle: handleCall,
	}
}
