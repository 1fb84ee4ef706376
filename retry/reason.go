package retry

// Reason says why a task went on, waits or stopped. The strings are stored,
// shown and stable.
type Reason string

// The outcomes of Decide, in the order in which it looks for them.
const (
	// ReasonCrashLoop stops a task whose runs ended without a word (lease ran
	// out) too often; a person looks at it.
	ReasonCrashLoop Reason = "crash_loop"
	// ReasonFailPermanent stops a task whose error says "never again".
	ReasonFailPermanent Reason = "fail_permanent"
	// ReasonManualReview puts a task whose outcome is unknown on a person's
	// desk.
	ReasonManualReview Reason = "manual_review"
	// ReasonDeadlineExceeded stops a task whose time is over, or whose next
	// attempt would come too late.
	ReasonDeadlineExceeded Reason = "deadline_exceeded"
	// ReasonAttemptsExhausted stops a task that has used all its attempts.
	ReasonAttemptsExhausted Reason = "attempts_exhausted"
	// ReasonScheduleRetry lets a task wait for its next attempt.
	ReasonScheduleRetry Reason = "schedule_retry"
)

// What happens to a task besides its own decisions.
const (
	// ReasonEnqueued is a task's first appearance.
	ReasonEnqueued Reason = "enqueued"
	// ReasonSuccess is the good end.
	ReasonSuccess Reason = "success"
	// ReasonExecuted, -CheckDone, -TookEffect and -NoEffect are steps within an attempt:
	// Execute succeeded, Check says done, Query says that it took effect, or that it did not.
	ReasonExecuted   Reason = "executed"
	ReasonCheckDone  Reason = "check_done"
	ReasonTookEffect Reason = "query_took_effect"
	ReasonNoEffect   Reason = "query_no_effect"
	// ReasonReleased is a claim handed back before its handler began.
	ReasonReleased Reason = "released"
	// ReasonOperatorRetry, -Succeed, -Fail and -Cancel are a person's hand.
	ReasonOperatorRetry   Reason = "operator_retry"
	ReasonOperatorSucceed Reason = "operator_succeed"
	ReasonOperatorFail    Reason = "operator_fail"
	ReasonOperatorCancel  Reason = "operator_cancel"
)
