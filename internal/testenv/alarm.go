package testenv

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Alarm returns a function that turns the memory alarm of the broker on and off; it
// is off when the test ends. The alarm stops everybody's publishers, so the test
// is skipped unless SPILLWAY_TEST_ALARM says how rabbitmqctl is run for a broker that
// nobody else uses, as in SPILLWAY_TEST_ALARM="$PWD/scripts/services ctl".
func Alarm(t testing.TB) func(on bool) {
	t.Helper()
	ctl := strings.Fields(os.Getenv("SPILLWAY_TEST_ALARM"))
	if len(ctl) == 0 {
		t.Skip("SPILLWAY_TEST_ALARM is not set: it needs a broker of its own, see testenv.Alarm")
	}
	set := func(watermark string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // t's context is over in a cleanup
		defer cancel()
		args := append(ctl[1:len(ctl):len(ctl)], "set_vm_memory_high_watermark", watermark)
		if out, err := exec.CommandContext(ctx, ctl[0], args...).CombinedOutput(); err != nil {
			t.Errorf("rabbitmqctl: %v\n%s", err, out)
		}
	}
	t.Cleanup(func() { set("0.4") })
	return func(on bool) {
		t.Helper()
		if on {
			set("0")
		} else {
			set("0.4")
		}
	}
}
