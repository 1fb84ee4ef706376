package persistence

import (
	"context"
	"database/sql"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// Store is what the pipeline needs of a database, for the tasks of one service.
// Every implementation must pass the suite in persistence/storetest. All methods may be
// called concurrently. Errors other than the named ones are the database's, wrapped.
type Store interface {
	// CheckSchema returns retry.ErrSchema unless the schema is the one that
	// this build was made for.
	CheckSchema(ctx context.Context) error

	// NextIDs returns n fresh task ids. Some may never be used.
	NextIDs(ctx context.Context, n int) ([]int64, error)
	// Insert stores tasks, all of those that are new or none, and says for
	// each what became of it, in the order given. After an error other than
	// retry.ErrInvalid nobody knows; tasks with an ID and a key may be given
	// again, and those that were stored are told as created.
	Insert(ctx context.Context, tasks []NewTask) ([]Inserted, error)
	// InsertTx is Insert inside the caller's transaction. The wake-ups of these
	// rows are the scan's, unless the caller publishes them after its commit. It
	// needs no other connection. The caller's transaction locks the keys.
	InsertTx(ctx context.Context, tx Tx, tasks []NewTask) ([]Inserted, error)

	// Submit stores tasks that came as messages, and with each, in the same
	// transaction, that its message was taken: all of those that are new or none. A
	// message that was taken before stores nothing. After an error other than
	// retry.ErrInvalid nobody knows; the same messages may be given again.
	Submit(ctx context.Context, list []Submission) ([]Submitted, error)

	// Claim takes those of the ids that wait, are due and belong to one of the
	// scenes. Called again with the same token it returns the same tasks and counts
	// the attempt once.
	Claim(ctx context.Context, req ClaimRequest) ([]Claimed, error)
	// Renew extends leases and returns the claims that are still held.
	Renew(ctx context.Context, lease time.Duration, claims []Claim) ([]Claim, error)
	// Finish ends attempts, at most one of each task in a call (else retry.ErrInvalid). An outcome that is not Applied was too late: the
	// claim was lost, nothing was written.
	Finish(ctx context.Context, results []Result) ([]Finished, error)
	// Advance says that a claimed task came into another phase in the middle of its attempt,
	// and writes step's event; other fields of step.Event than Reason, Actor and Note are the
	// store's own. false: the claim was lost, nothing was written. Made again, by the driver or
	// the caller, it writes once.
	Advance(ctx context.Context, step Step) (held bool, err error)
	// Release hands claims back whose handlers did not begin: the attempt is
	// not counted. It returns the ids that wait again.
	Release(ctx context.Context, claims []Claim) ([]int64, error)

	// Redispatch says that the wake-ups of these waiting tasks come again after
	// d; it returns the tasks that still wait.
	Redispatch(ctx context.Context, ids []int64, d time.Duration) ([]Wake, error)
	// Undelivered says that the wake-ups of these tasks may not have reached
	// the broker, so that the scan takes them once they are due.
	Undelivered(ctx context.Context, ids []int64) error
	// Wakes returns the wake-ups of those of the ids that wait.
	Wakes(ctx context.Context, ids []int64) ([]Wake, error)
	// Undispatched returns waiting tasks that a scan should wake, those that have
	// been so for longest first.
	Undispatched(ctx context.Context, limit int) ([]Wake, error)
	// Dispatched pushes the next scan of these tasks out, by a gap that grows
	// each time. Tasks that changed since Undispatched are left alone.
	Dispatched(ctx context.Context, wakes []Wake) error

	// Expired returns held tasks of the scenes whose lease is over, by id, from
	// above the id given.
	Expired(ctx context.Context, scenes []string, after int64, limit int) ([]Expired, error)
	// Expire ends such claims as decided. Claims that changed since Expired are
	// left alone; the ids of the others are returned.
	Expire(ctx context.Context, results []Result) ([]int64, error)
	// Sweep removes at most limit terminal tasks that ended more than
	// retention ago, with their journal, and returns how many. Messages that Submit
	// took as long ago are forgotten too, at most limit.
	Sweep(ctx context.Context, retention time.Duration, limit int) (int, error)
	// Lead takes or renews the service's reaper lease for holder. ok is false
	// while another holds it. The epoch grows with every change of holder.
	Lead(ctx context.Context, holder string, ttl time.Duration) (epoch int64, ok bool, err error)
	// Resign gives the lease up, if holder has it.
	Resign(ctx context.Context, holder string) error

	// Get returns one task or retry.ErrNotFound.
	Get(ctx context.Context, id int64) (retry.Task, error)
	// List returns tasks, newest first.
	List(ctx context.Context, f Filter) ([]retry.Task, error)
	// Count returns how many tasks there are by scene, status and stop reason.
	Count(ctx context.Context) ([]Count, error)
	// Events returns a task's journal, oldest first.
	Events(ctx context.Context, id int64) ([]Event, error)
	// Operate does what a person asks. It returns retry.ErrNotFound, retry.ErrState where the
	// task's state does not allow it, or retry.ErrKeyConflict where a newer task
	// holds the key.
	Operate(ctx context.Context, a Action) (retry.Task, error)

	// SavePolicy returns the version of a scene's rules, a new one if they
	// changed.
	SavePolicy(ctx context.Context, scene string, rules retry.Rules) (int, error)
	// Policy returns the rules of a version, or retry.ErrNotFound.
	Policy(ctx context.Context, scene string, version int) (retry.Rules, error)
}

// Tx is a transaction of the caller: *sql.Tx, *sqlx.Tx or *sql.Conn will do.
type Tx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// NewTask is a task to store.
type NewTask struct {
	// ID from NextIDs; zero lets Insert take one.
	ID    int64
	Scene string
	// Key; empty means one made from the id, so that nothing is deduplicated.
	Key         string
	Args        []byte
	ContentType string
	Headers     map[string]string
	// Delay until the first attempt is due. Zero: at once.
	Delay time.Duration
	// Deadline, counted from now. Zero: none.
	Deadline time.Duration
	// Workflow whose deadline the task shares, fixed by its first task. Empty:
	// none.
	Workflow string
	// ReuseKey lets the key of a terminal task be taken over.
	ReuseKey bool
	// Status is WAIT where empty; MANUAL_REVIEW for a task that goes straight
	// to a person and FAILED for one that comes too late, with their StopReason;
	// INIT for one whose call is about to be made
	// under the claim of Token.
	Status retry.Status
	// Lease, Token (a UUID) and By (who claims, for people) are the claim of a task
	// in INIT, and zero for others. It is attempt 0; Renew and Finish take it like
	// any claim, Release does not.
	Lease      time.Duration
	Token      string
	By         string
	StopReason retry.Reason
	LastError  string
	LastClass  retry.Class
	// Phase of its first attempt. Empty: PhaseExecute.
	Phase retry.Phase
	// Event is the journal row of the inline run. nil writes none.
	Event *Event
}

// Inserted says what became of a NewTask.
type Inserted struct {
	ID int64
	// Created is false where the key is held by an equal task, whose id and
	// status these are.
	Created bool
	Status  retry.Status
	// Conflict is set where the key is held by a task with other arguments;
	// nothing was stored.
	Conflict bool
	// Delay until due, for the wake-up. Zero for a task that does not wait;
	// Far says that the scan publishes its wake-up later.
	Delay time.Duration
	Far   bool
}

// Submission is a task that came as a message.
type Submission struct {
	// MessageID by which a message that comes again is recognised, at most 255
	// bytes of UTF-8 without NUL. Empty: it is not, but for its task's key.
	MessageID string
	Task      NewTask
}

// Submitted says what became of a Submission.
type Submitted struct {
	Inserted
	// Repeated says that the message was taken before, and nothing was stored. ID is
	// its task's; Status is empty where the task has gone since.
	Repeated bool
}

// ClaimRequest names what to claim and by whom.
type ClaimRequest struct {
	IDs    []int64
	Scenes []string // known to this build
	Token  string   // a UUID made for this request
	By     string   // who claims, for people
	Lease  time.Duration
}

// Claim is the right to act on a task.
type Claim struct {
	ID    int64
	Token string
}

// Claimed is a task whose attempt may begin.
type Claimed struct {
	retry.Task
	// Elapsed is the time since the task was created.
	Elapsed time.Duration
	// Deadline is the time from creation to the deadline. Zero: none.
	Deadline time.Duration
	// Late is how long after its due time the task was claimed. Slightly below
	// zero for a wake-up that came within the slack.
	Late time.Duration
}

// Result is how an attempt ended and what follows.
type Result struct {
	Claim
	Status retry.Status // WAIT, SUCCESS, FAILED or MANUAL_REVIEW
	Reason retry.Reason // stored as the stop reason unless the task waits or succeeded
	// Delay until the next attempt, where the task waits.
	Delay   time.Duration
	Class   retry.Class
	Error   string // stored cut to MaxErrorLen and marked as cut
	Unknown bool
	// Phase that the task is in from now on (empty: PhaseExecute), and the tries of Query or
	// Callback in it so far.
	Phase retry.Phase
	Tries int
	// Idle says that the attempt ran no Execute, so that MaxAttempts does not count it.
	// Without effect with Expire, which counts no attempt.
	Idle bool
	// Event is written in the same statement. nil writes none.
	Event *Event
}

// Step is a change of phase in the middle of an attempt.
type Step struct {
	Claim
	Phase retry.Phase
	Event Event
}

// Finished says whether a Result was applied.
type Finished struct {
	ID      int64
	Applied bool
	// Far says that the task waits beyond the horizon: the scan publishes its
	// wake-up.
	Far bool
}

// Wake is what a wake-up needs.
type Wake struct {
	ID    int64
	Scene string
	// In is how long until the task is due; below zero for one that is overdue.
	In time.Duration
	// Seen recognises a change between Undispatched and Dispatched.
	Seen time.Time
}

// Expired is a held task whose lease is over.
type Expired struct {
	Claim      // Token is empty where the row has none
	Scene      string
	Status     retry.Status // INIT or EXECUTING
	Attempt    int
	Crashes    int // without this one
	Uncharged  int // without this one
	ClaimedBy  string
	Elapsed    time.Duration
	Deadline   time.Duration
	LeaseEnded time.Duration // how long ago; zero where the row names no lease
	Phase      retry.Phase
	Tries      int
}

// Filter selects tasks. Zero fields select all.
type Filter struct {
	Scenes   []string
	Statuses []retry.Status
	Key      string        // exact
	Workflow string        // exact
	MinAge   time.Duration // created at least so long ago
	MaxAge   time.Duration // created at most so long ago
	Before   int64         // only ids below, to page on
	Limit    int           // zero means 100
}

// Count is a number of tasks alike.
type Count struct {
	Scene      string       `db:"scene" json:"scene"`
	Status     retry.Status `db:"status" json:"status"`
	StopReason retry.Reason `db:"stop_reason" json:"stop_reason,omitempty"`
	Tasks      int64        `db:"tasks" json:"tasks"`
	Attempts   int64        `db:"attempts" json:"attempts"`
}

// Event is a row of the journal. Of what Insert, Finish and Expire are given, Attempt, To and
// Error are the task's and the result's own, as are Reason and Class with Finish and Expire. From
// is EXECUTING where Finish gets none.
type Event struct {
	At            time.Time    `json:"at"` // set by the store
	Attempt       int          `json:"attempt"`
	From          retry.Status `json:"from"` // empty for a task's first
	To            retry.Status `json:"to"`
	Reason        retry.Reason `json:"reason"`
	Class         retry.Class  `json:"class,omitempty"`
	Error         string       `json:"error,omitempty"` // cut like Result.Error
	Actor         string       `json:"actor,omitempty"` // the consumer or the person
	Note          string       `json:"note,omitempty"`
	PolicyVersion int          `json:"policy_version,omitempty"`
	Phase         retry.Phase  `json:"phase,omitempty"` // of the task after this; set by the store
	// Facts and Decision are what Decide got and said; nil where nothing was
	// decided.
	Facts    *retry.Facts    `json:"facts,omitempty"`
	Decision *retry.Decision `json:"decision,omitempty"`
}

// Verb is what a person does with a task.
type Verb string

// The verbs.
const (
	// Retry makes a stopped or waiting task due now, with a new budget of
	// attempts and time.
	Retry Verb = "retry"
	// Succeed ends a task as SUCCESS, because a person knows that it is done.
	Succeed Verb = "succeed"
	// Fail ends a task as FAILED.
	Fail Verb = "fail"
	// Cancel ends a task as CANCELLED.
	Cancel Verb = "cancel"
)

// Action is a person's hand on a task.
type Action struct {
	Verb  Verb
	ID    int64
	Actor string // required
	Note  string
	// Phase that the task is put into, with Retry only: PhaseExecute says that it did not
	// take effect, PhaseCallback that it did, PhaseQuery that this is to be asked. Empty
	// leaves it as it is.
	Phase retry.Phase
}
