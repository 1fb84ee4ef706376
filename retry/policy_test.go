package retry_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/retry"
)

// The vectors of the design, section 5.
func TestDelayVectors(t *testing.T) {
	p := retry.Policy{Kind: retry.Exponential, Base: 2 * time.Second, Cap: time.Minute, MaxAttempts: 10, Unit: time.Second}
	for id, want := range map[string][]int{
		"flight-1": {1, 2, 4, 11, 16, 35},
		"flight-2": {1, 2, 4, 15, 19, 54},
	} {
		for i, w := range want {
			if got := p.Delay(id, i+1); got != time.Duration(w)*time.Second {
				t.Errorf("%s attempt %d: %v, want %d s", id, i+1, got, w)
			}
		}
	}
}

func TestCeilingByKind(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		name string
		p    retry.Policy
		want []time.Duration // for attempts 0, 1, 2, …
	}{
		{"fixed", retry.Policy{Kind: retry.Fixed, Base: 3 * s, MaxAttempts: 1}, []time.Duration{3 * s, 3 * s, 3 * s}},
		{"linear", retry.Policy{Kind: retry.Linear, Base: 3 * s, Cap: 7 * s, MaxAttempts: 1}, []time.Duration{3 * s, 3 * s, 6 * s, 7 * s}},
		{"exponential", retry.Policy{Kind: retry.Exponential, Base: 3 * s, Cap: 13 * s, MaxAttempts: 1}, []time.Duration{3 * s, 3 * s, 6 * s, 12 * s, 13 * s}},
		{"custom", retry.Policy{Kind: retry.Custom, Delays: []time.Duration{5 * s, s}, MaxAttempts: 1}, []time.Duration{5 * s, 5 * s, s, s, s}},
		{"zero is the default", retry.Policy{}, []time.Duration{2 * s, 2 * s, 4 * s, 8 * s}},
	} {
		for n, w := range c.want {
			if got := c.p.Ceiling(n); got != w {
				t.Errorf("%s: ceiling after attempt %d is %v, want %v", c.name, n, got, w)
			}
		}
	}
}

func anyPolicy(t *rapid.T) retry.Policy {
	d := rapid.Int64Range(1, int64(retry.MaxDelay))
	p := retry.Policy{
		Kind:        rapid.SampledFrom([]retry.Kind{retry.Fixed, retry.Linear, retry.Exponential, retry.Custom}).Draw(t, "kind"),
		MaxAttempts: rapid.IntRange(1, retry.MaxAttemptsLimit).Draw(t, "max attempts"),
		NoJitter:    rapid.Bool().Draw(t, "no jitter"),
	}
	if p.Kind == retry.Custom {
		for _, n := range rapid.SliceOfN(d, 1, 5).Draw(t, "delays") {
			p.Delays = append(p.Delays, time.Duration(n))
		}
		p.Cap = time.Duration(d.Draw(t, "cap"))
	} else {
		// Any base at all, far above what Check allows too.
		p.Base = time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "base"))
		p.Cap = time.Duration(rapid.Int64Range(int64(p.Base), math.MaxInt64).Draw(t, "cap"))
	}
	p.Unit = time.Duration(rapid.Int64Range(1, int64(p.Cap)).Draw(t, "unit"))
	return p
}

// No overflow and never above the cap, for any attempt up to 10⁶ and any base;
// the same inputs give the same answer.
func TestDelayStaysInBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPolicy(t)
		n := rapid.IntRange(0, 1_000_000).Draw(t, "attempt")
		id := strconv.FormatInt(rapid.Int64().Draw(t, "id"), 10)
		c, d := p.Ceiling(n), p.Delay(id, n)
		if c <= 0 || c > p.Cap {
			t.Fatalf("ceiling %v outside (0, %v]", c, p.Cap)
		}
		if d <= 0 || d > p.Cap {
			t.Fatalf("delay %v outside (0, %v]", d, p.Cap)
		}
		if !p.NoJitter && d > max(c, p.Unit) {
			t.Fatalf("delay %v above its ceiling %v", d, c)
		}
		if low := c/2 - p.Unit; d < low {
			t.Fatalf("delay %v below half its ceiling %v", d, c)
		}
		if d != p.Delay(id, n) || c != p.Ceiling(n) {
			t.Fatal("the same inputs gave another answer")
		}
	})
}

// Ten thousand tasks that failed in the same second wake spread out.
func TestJitterSpreads(t *testing.T) {
	p := retry.Policy{Kind: retry.Fixed, Base: 100 * time.Second, MaxAttempts: 5}
	const tasks = 10_000
	var share [100]int // of the window of 50 s
	for id := range tasks {
		d := p.Delay(strconv.Itoa(id+1), 1)
		share[min(int((d-50*time.Second)/(500*time.Millisecond)), 99)]++
	}
	largest := 0
	for _, n := range share {
		largest = max(largest, n)
	}
	t.Logf("largest share in any 1 %% of the window: %.2f %%", float64(largest)*100/tasks)
	// Evenly spread means 100 each; a binomial of that size stays below 145
	// but once in millions.
	if largest > 145 {
		t.Errorf("%d of %d tasks in 1 %% of the window", largest, tasks)
	}
}

func TestPolicyCheckNamesEveryField(t *testing.T) {
	for _, c := range []struct {
		name string
		p    retry.Policy
		want []string // fields, in order
	}{
		{"zero is the default", retry.Policy{}, nil},
		{"zero attempts", retry.Policy{Kind: retry.Fixed}, []string{"policy.max_attempts"}},
		{"negative base", retry.Policy{Kind: retry.Fixed, Base: -1, MaxAttempts: 1}, []string{"policy.base"}},
		{"cap below base", retry.Policy{Kind: retry.Linear, Base: 2, Cap: 1, Unit: 1, MaxAttempts: 1}, []string{"policy.cap"}},
		{"no kind", retry.Policy{MaxAttempts: 3}, []string{"policy.kind"}},
		{"custom without delays", retry.Policy{Kind: retry.Custom, MaxAttempts: 3}, []string{"policy.delays"}},
		{"custom with a zero", retry.Policy{Kind: retry.Custom, MaxAttempts: 3, Delays: []time.Duration{1, 0}}, []string{"policy.delays[1]"}},
		{"all wrong at once", retry.Policy{Kind: "SQUARE", Cap: -1, Deadline: -1, MaxAttempts: -1, Unit: -1},
			[]string{"policy.kind", "policy.cap", "policy.max_attempts", "policy.deadline", "policy.unit"}},
	} {
		errs := c.p.Check()
		var got []string
		for _, err := range errs {
			var fe *retry.FieldError
			if !errors.As(err, &fe) || !errors.Is(err, retry.ErrInvalid) {
				t.Fatalf("%s: %v is not a FieldError", c.name, err)
			}
			got = append(got, fe.Field)
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%s: fields %v, want %v", c.name, got, c.want)
		}
	}
}
