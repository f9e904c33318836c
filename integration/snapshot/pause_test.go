package snapshot

import (
	"testing"
	"time"
)

// After a pause of ten seconds the clock is right when Resume has returned. The pause is beside the tests that are parallel, too.
func TestClockAfterAPause(t *testing.T) {
	t.Parallel()
	v := start(t, config(t))
	output(t, v, "touch /tmp/before")
	if err := v.Pause(limited(t)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	if err := v.Resume(limited(t)); err != nil {
		t.Fatal(err)
	}
	wantClock(t, v)
	before, err := v.Stat(limited(t), "/tmp/before")
	if err != nil {
		t.Fatal(err)
	}
	now, err := v.Stat(limited(t), "/tmp/now")
	if err != nil {
		t.Fatal(err)
	}
	if passed := now.Modified.Sub(before.Modified); passed < 9500*time.Millisecond {
		t.Errorf("%v have passed on the guest's clock: it was not paused for ten seconds, or the clock stood still", passed)
	}
}
