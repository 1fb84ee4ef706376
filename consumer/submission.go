package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

// newTasks makes the tasks of messages. It takes the ids that are missing.
func (c *Consumer) newTasks(ctx context.Context, todo []*submission) ([]persistence.Submission, error) {
	missing := 0
	for _, s := range todo {
		if s.id == 0 {
			missing++
		}
	}
	ids, err := c.cfg.Store.NextIDs(ctx, missing)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]persistence.Submission, len(todo))
	for i, s := range todo {
		if s.id == 0 {
			s.id, ids = ids[0], ids[1:]
		}
		sc := c.sceneOf(s.msg.Scene)
		version := 0
		if s.msg.Attempt != nil {
			if version, err = c.policy(ctx, sc); err != nil {
				return nil, err
			}
		}
		out[i] = persistence.Submission{MessageID: s.msg.MessageID, Task: c.newTask(s, sc, version, now)}
	}
	return out, nil
}

// sceneOf returns the scene, with the default rules where this build does not know it: its tasks
// are stored all the same and wait for a build that does.
func (c *Consumer) sceneOf(name string) *scene {
	if s := c.scenes[name]; s != nil {
		return s
	}
	stranger := retry.Scene{Name: name}
	return &scene{Handler: Handler{scene: stranger}, rules: stranger.Rules(c.grid)}
}

// newTask makes the task that the message asks for. The time in the queue counts: what is due by
// now is due at once.
func (c *Consumer) newTask(s *submission, sc *scene, version int, now time.Time) persistence.NewTask {
	m := &s.msg
	passed := m.Passed(now)
	t := persistence.NewTask{
		ID: s.id, Scene: m.Scene, Key: m.Key, Args: m.Args, ContentType: m.ContentType, Headers: m.Headers, Workflow: m.Workflow, ReuseKey: sc.scene.ReuseKey,
	}
	deadline := m.Deadline
	if deadline == 0 {
		deadline = m.Delay + sc.rules.Policy.Deadline
	}
	a := m.Attempt
	if a == nil {
		t.Delay = c.grid.Up(m.Delay - passed)
		// At least a moment: who claims it then writes down that it came too late.
		t.Deadline = max(deadline-passed, time.Millisecond)
		return t
	}
	facts := retry.Facts{
		TaskID: s.id, Elapsed: a.Elapsed + passed, Deadline: deadline, Class: a.Class, RetryAfter: max(a.RetryAfter-passed, 0), Calls: a.Calls,
	}
	d := retry.Decide(sc.rules, facts)
	t.Delay, t.Status, t.Phase, t.Deadline = d.Delay, d.Status, d.Phase, max(deadline-facts.Elapsed, time.Millisecond)
	if d.Status != retry.StatusWait {
		t.StopReason = d.Reason
	}
	t.LastError, t.LastClass = a.Error, a.Class
	actor := m.By
	if actor == "" {
		actor = "a client of the submit queue"
	}
	note := fmt.Sprintf("through the submit queue, in %v", passed.Round(time.Millisecond))
	if a.Note != "" {
		note += "; " + a.Note
	}
	t.Event = &persistence.Event{
		To: d.Status, Reason: d.Reason, Class: a.Class, Error: a.Error, Actor: actor, PolicyVersion: version, Facts: &facts, Decision: &d, Note: note,
	}
	return t
}
