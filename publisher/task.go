package publisher

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-mq/spillway/internal/submit"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// Content types of encoded arguments.
const (
	contentJSON  = submit.ContentJSON
	contentBytes = "application/octet-stream"
)

// Task is what a caller hands over.
type Task struct {
	// Scene says what kind of task it is. Required.
	Scene string
	// Key makes the task unique within its scene for as long as its row is kept:
	// the same key with the same arguments is the same task. 1 to 255 bytes.
	// Empty: the task gets a key of its own and nothing is deduplicated.
	Key string
	// Args of the handler. []byte is stored as it is (application/octet-stream),
	// json.RawMessage too (application/json); anything else goes through
	// json.Marshal, so that nil is null.
	Args any
	// Delay until the first attempt; it is rounded up to what the broker can
	// express (less than 6.25 % above it). Zero: at once. At most
	// retry.MaxDelay. Do, which calls at once, takes none.
	Delay time.Duration
	// Deadline after which no attempt begins, counted from the call and above
	// Delay. Zero: Delay and the deadline of the scene's policy, so that a task
	// planned far ahead has its whole time when it begins. A task whose workflow
	// exists already has the workflow's.
	Deadline time.Duration
	// Workflow whose deadline the task shares; the first task that names it fixes
	// it. At most 255 bytes. Empty: none.
	Workflow string
	// Headers for the handler, such as trace ids: together at most 16 KiB.
	Headers map[string]string
}

// Result says what became of a Task.
type Result struct {
	// ID of the task that holds the key. Where Submitted, zero, or the id that the
	// task gets unless its key is held.
	ID int64
	// Created is false where the key was held already: by an equal task, or by
	// another one, and then there is a *ConflictError. Where Submitted it is not
	// known, and false.
	Created bool
	// Status of the task that holds the key. Where Submitted, that with which it will
	// be stored.
	Status retry.Status
	// Submitted says that Postgres was away and the task is in the submit queue, from
	// which a consumer stores it.
	Submitted bool
}

// ConflictError says that a task was not stored, because its key is held by one
// with other arguments. It is retry.ErrKeyConflict to errors.Is.
type ConflictError struct {
	// Index of the task in the call's tasks.
	Index int
	Scene string
	Key   string
	// Holder is the id of the task that holds the key.
	Holder int64
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("scene %s, key %q: %v (task %d)", e.Scene, retry.CutString(e.Key, 80), retry.ErrKeyConflict, e.Holder)
}

// Unwrap returns retry.ErrKeyConflict.
func (e *ConflictError) Unwrap() error { return retry.ErrKeyConflict }

// prepare validates t and encodes it. All that is wrong with it is reported.
func (p *Publisher) prepare(t Task) (persistence.NewTask, error) {
	var errs fieldErrors
	s, err := p.scenes.get(t.Scene)
	if err != nil {
		errs.join(err)
		s = newScene(retry.Scene{Name: t.Scene}) // the rest can be judged without it
	}
	t.check(&errs)
	delay := topology.Grid().Up(t.Delay)
	deadline := t.Deadline
	switch {
	case deadline < 0 || deadline > retry.MaxDelay:
		errs.add("deadline", deadline, fmt.Sprintf("0 (delay and the policy's) to %v (ten years)", retry.MaxDelay))
	case deadline == 0:
		deadline = delay + s.rules.Policy.Deadline
	case deadline <= delay:
		errs.add("deadline", deadline, fmt.Sprintf("0 or above the delay (%v)", delay))
	}
	args, contentType, err := encode(t.Args, p.cfg.MaxPayload)
	errs.join(err)
	if err := errs.err(); err != nil {
		return persistence.NewTask{}, err
	}
	return persistence.NewTask{
		Scene: t.Scene, Key: t.Key, Args: args, ContentType: contentType, Headers: t.Headers,
		Delay: delay, Deadline: deadline, Workflow: t.Workflow, ReuseKey: s.ReuseKey,
	}, nil
}

// check validates what does not depend on the scene.
func (t *Task) check(errs *fieldErrors) {
	if t.Key != "" {
		errs.join(retry.CheckKey(t.Key))
	}
	if t.Delay < 0 || t.Delay > retry.MaxDelay {
		errs.add("delay", t.Delay, fmt.Sprintf("0 (now) to %v (ten years)", retry.MaxDelay))
	}
	if t.Workflow != "" {
		errs.join(submit.CheckWorkflow(t.Workflow))
	}
	errs.join(submit.CheckHeaders(t.Headers))
}

// encode returns the stored form of arguments and its content type.
func encode(args any, limit int) ([]byte, string, error) {
	var b []byte
	contentType := contentJSON
	switch a := args.(type) {
	case json.RawMessage:
		if b = a; a == nil {
			b = []byte("null")
		}
		if len(b) <= limit && !json.Valid(b) {
			return nil, "", retry.NewFieldError("args", string(b), "valid JSON where the type is json.RawMessage")
		}
	case []byte:
		b, contentType = a, contentBytes
	default:
		var err error
		if b, err = json.Marshal(args); err != nil {
			return nil, "", fmt.Errorf("%w: %w", retry.NewFieldError("args", fmt.Sprintf("%T", args), "a value that encodes as JSON"), err)
		}
	}
	if len(b) > limit {
		return nil, "", retry.NewFieldError("args", fmt.Sprintf("%d bytes", len(b)), fmt.Sprintf("at most %d bytes (max payload)", limit))
	}
	return b, contentType, nil
}

// fieldErrors gathers what is wrong.
type fieldErrors []error

func (f *fieldErrors) add(field string, value any, allowed string) {
	*f = append(*f, retry.NewFieldError(field, value, allowed))
}

func (f *fieldErrors) join(err error) {
	if err != nil {
		*f = append(*f, err)
	}
}

func (f fieldErrors) err() error { return errors.Join(f...) }
