package main

import (
	"context"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/retry"
)

// askScene asks the other side before it redoes anything, and books what took effect.
func askScene() scene {
	again := policy()
	again.MaxAttempts = 30
	return scene{
		Scene: retry.Scene{
			Name: "chaos.ask", Policy: policy(), Local: local(), Unknown: retry.UnknownAsk, Classify: retry.ClassifyNet, QueryPolicy: again, CallbackPolicy: again,
		},
		once: true, books: true, handle: handleSteps,
	}
}

func handleSteps(s retry.Scene, c *caller) consumer.Handler {
	head := func(j *consumer.Job[args], step string) callHead {
		return callHead{Scene: s.Name, Key: j.Task.Key, Task: j.Task.ID, Attempt: j.Attempt, Run: j.Task.ClaimToken, Step: step}
	}
	return consumer.HandleSteps(s, consumer.Steps[args]{
		Check: func(ctx context.Context, j *consumer.Job[args]) (retry.Progress, error) {
			said, err := c.ask(ctx, head(j, stepCheck))
			return retry.Progress(said), err
		},
		Query: func(ctx context.Context, j *consumer.Job[args]) (retry.Answer, error) {
			said, err := c.ask(ctx, head(j, stepQuery))
			return retry.Answer(said), err
		},
		Execute:  func(ctx context.Context, j *consumer.Job[args]) error { return c.call(ctx, head(j, stepExecute)) },
		Callback: func(ctx context.Context, j *consumer.Job[args]) error { return c.call(ctx, head(j, stepCallback)) },
	})
}
