package nearest

import "testing"

func TestName(t *testing.T) {
	known := []string{"timeout", "concurrency", "max_crashes", "name"}
	for in, want := range map[string]string{
		"timeuot": "timeout", "TimeOut": "timeout", "concurency": "concurrency", "maxcrashes": "max_crashes",
		"nam": "name", "quux": "", "": "", "retries": "",
	} {
		if got := Name(in, known); got != want {
			t.Errorf("Name(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Hint("nme", known); got != ` (did you mean "name"?)` {
		t.Errorf("Hint = %q", got)
	}
	if got := Hint("quux", known); got != "" {
		t.Errorf("Hint = %q", got)
	}
}
