package vm

import (
	"errors"
	"testing"
	"time"
)

func TestClockWatch(t *testing.T) {
	var wall, monotonic time.Duration
	var sets int
	var failure error
	c := newClockWatch(func() (time.Duration, time.Duration) { return wall, monotonic }, func() error {
		sets++
		return failure
	})
	steps := []struct {
		name            string
		wall, monotonic time.Duration
		failure         error
		sets            int // so far
	}{
		{"time passes", time.Second, time.Second, nil, 0},
		{"a little correction", time.Second + 90*time.Millisecond, time.Second, nil, 0},
		{"corrections add up", time.Second + 90*time.Millisecond, time.Second, nil, 1},
		{"and that is settled", time.Second, time.Second, nil, 1},
		{"a night's sleep", 8 * time.Hour, time.Second, errors.New("the guest is busy"), 2},
		{"tried again", time.Second, time.Second, nil, 3},
		{"set back", -time.Hour, time.Second, nil, 4},
		{"time passes again", time.Second, time.Second, nil, 4},
	}
	for _, s := range steps {
		wall, monotonic, failure = wall+s.wall, monotonic+s.monotonic, s.failure
		if c.check(); sets != s.sets {
			t.Errorf("%s: the guest's clock was set %d times, want %d", s.name, sets, s.sets)
		}
	}
}

func TestHostClocksGoTogether(t *testing.T) {
	now := hostClocks()
	time.Sleep(20 * time.Millisecond)
	wall, monotonic := now()
	if monotonic < 20*time.Millisecond || (wall-monotonic).Abs() > clockTolerance {
		t.Errorf("20 ms are %v on the wall clock and %v on the monotonic one", wall, monotonic)
	}
}
