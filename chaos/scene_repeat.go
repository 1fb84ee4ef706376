package main

import (
	"context"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/retry"
)

// repeatScene may be repeated: an outcome that nobody knows is tried again.
func repeatScene() scene {
	return scene{
		Scene:  retry.Scene{Name: "chaos.repeat", Policy: policy(), Local: local(), Unknown: retry.UnknownRepeat, Classify: retry.ClassifyNet},
		handle: handleCall,
	}
}

// handleCall makes one call under the claim.
func handleCall(s retry.Scene, c *caller) consumer.Handler {
	return consumer.Handle(s, func(ctx context.Context, j *consumer.Job[args]) error {
		return c.call(ctx, callHead{Scene: s.Name, Key: j.Task.Key, Task: j.Task.ID, Attempt: j.Attempt, Run: j.Task.ClaimToken, Step: stepExecute})
	})
}
