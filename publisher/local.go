package publisher

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// localTry is a call of the local tier that failed.
type localTry struct {
	at    time.Duration // its end, after the first call began
	class retry.Class
	err   error
}

// tries are the calls of one local tier that failed, in order.
type tries []localTry

// last is the class of the last error.
func (t tries) last() retry.Class {
	if len(t) == 0 {
		return retry.ClassNone
	}
	return t[len(t)-1].class
}

// story tells the journal what happened before it begins. Nothing where a single call failed: the row's
// own error tells that.
func (t tries) story() string {
	if len(t) < 2 {
		return ""
	}
	return fmt.Sprintf("%d calls, the last of them this error; before: %s", len(t), t[:len(t)-1].list())
}

func (t tries) list() string {
	const text = 200 // bytes of an error
	parts := make([]string, len(t))
	for i, l := range t {
		parts[i] = fmt.Sprintf("call %d ended after %v, %s: %s", i+1, l.at.Round(time.Millisecond), l.class, retry.CutString(l.err.Error(), text))
	}
	return strings.Join(parts, "; ")
}

// try is the local tier: it returns the calls that failed, and the error of the last where none
// succeeded.
func (p *Publisher) try(ctx context.Context, s *scene, call func(context.Context) error) (failed tries, err error) {
	began := time.Now()
	for try := 0; ; try++ {
		err := call(ctx)
		if err == nil {
			return failed, nil
		}
		class := s.ClassOf(err)
		failed = append(failed, localTry{time.Since(began), class, err})
		if class == retry.ClassPermanent || try >= s.local.Retries || !p.worthAnother(ctx, s, class, err) {
			return failed, err
		}
	}
}
