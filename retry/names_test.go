package retry_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/spillway-mq/spillway/retry"
)

func contains(s, sub string) bool { return strings.Contains(s, sub) }

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, c := range []struct {
		check func(string) error
		field string
		good  []string
		bad   []string
	}{
		{retry.CheckService, "service", []string{"orders", "a", "0-x", long[:63]}, []string{"", "Orders", "or.ders", "or ders", "ü", long[:64], "a\n"}},
		{retry.CheckScene, "scene", []string{"payment.refund", "a", "a_b-c.9", long[:127]}, []string{"", ".a", "A", "a b", "ä", long[:128], "a\n"}},
		{retry.CheckKey, "key", []string{"order 17/ü", "a", long[:255]}, []string{"", "a\x00b", "a\nb", "\xff", long[:256]}},
	} {
		for _, s := range c.good {
			if err := c.check(s); err != nil {
				t.Errorf("%s %q: %v", c.field, s, err)
			}
		}
		for _, s := range c.bad {
			err := c.check(s)
			var fe *retry.FieldError
			if !errors.As(err, &fe) || fe.Field != c.field || fe.Allowed == "" || len(err.Error()) > 400 {
				t.Errorf("%s %q: %v", c.field, s, err)
			}
		}
	}
}

func TestCutString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.RuneFrom([]rune("aü€𝄞\x00")), 0, 40, -1)).Draw(t, "s")
		if rapid.Bool().Draw(t, "broken") {
			s += "\xff\xc3"
		}
		n := rapid.IntRange(-1, 30).Draw(t, "limit")
		got := retry.CutString(s, n)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Fatalf("%q is not storable", got)
		}
		if cut := len(s) > max(n, 0); cut != strings.Contains(got, "…[cut, ") {
			t.Fatalf("%q to %d: %q", s, n, got)
		}
	})
}

func TestStatusTransitions(t *testing.T) {
	for _, s := range retry.Statuses() {
		if !s.Valid() {
			t.Errorf("%s is not valid", s)
		}
		if retry.StatusSuccess.CanBecome(s) {
			t.Errorf("SUCCESS may become %s", s)
		}
	}
	if retry.StatusManualReview.Terminal() || retry.Status("DONE").Valid() {
		t.Error("wrong statuses")
	}
}

func TestGridUp(t *testing.T) {
	g := retry.Grid{Unit: 100 * time.Millisecond, SignificantBits: 5, Horizon: 16383 * 100 * time.Millisecond}
	for in, want := range map[time.Duration]time.Duration{
		-1: 0, 0: 0, 1: 100 * time.Millisecond, 3100 * time.Millisecond: 3100 * time.Millisecond, 3201 * time.Millisecond: 3400 * time.Millisecond,
		60 * 24 * time.Hour: 60 * 24 * time.Hour,
	} {
		if got := g.Up(in); got != want {
			t.Errorf("Up(%v) = %v, want %v", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(2*g.Horizon)).Draw(t, "d"))
		up := g.Up(d)
		if up < d || float64(up) > float64(d)*1.0625+float64(g.Unit) || up%g.Unit != 0 {
			t.Fatalf("Up(%v) = %v", d, up)
		}
		if d <= g.Horizon && up > g.Horizon {
			t.Fatalf("Up(%v) = %v is beyond the horizon", d, up)
		}
		if g.Up(up) != up {
			t.Fatalf("Up(%v) is not stable", up)
		}
	})
	if (retry.Grid{}).Up(7) != 7 {
		t.Error("the zero grid rounds")
	}
}
