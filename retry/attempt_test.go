package retry_test

import (
	"context"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

func TestAttempt(t *testing.T) {
	t.Parallel()
	if a, ok := retry.AttemptOf(t.Context()); ok || a != (retry.Attempt{}) {
		t.Errorf("%+v, %v in a context without one", a, ok)
	}
	want := retry.Attempt{Number: 2, Task: 7, Service: "orders", Scene: "mail", Key: "a/b", Deadline: time.Unix(1, 0)}
	ctx := retry.WithAttempt(t.Context(), want)
	if a, ok := retry.AttemptOf(context.WithoutCancel(ctx)); !ok || a != want || a.IdempotencyKey() != "orders/mail/a/b" {
		t.Errorf("%+v, %v", a, ok)
	}
	if a, ok := retry.AttemptOf(retry.WithAttempt(ctx, retry.Attempt{})); !ok || a != (retry.Attempt{}) || a.IdempotencyKey() != "" {
		t.Errorf("the innermost counts, and its zero value is one: %+v, %v", a, ok)
	}
	if a, ok := retry.AttemptOf(retry.WithoutAttempt(ctx)); ok {
		t.Errorf("%+v after WithoutAttempt", a)
	}
}
