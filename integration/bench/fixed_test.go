//go:build linux

package main

import (
	"testing"
	"time"
)

func TestLastLineSince(t *testing.T) {
	const log = `time=2026-11-30T09:00:00.100Z level=INFO msg=snapshot name=first
time=2026-11-30T09:00:01.200Z level=INFO msg=snapshot name=second
time=2026-11-30T09:00:01.900Z level=INFO msg="the VM runs"
`
	at := func(milliseconds int) time.Time {
		return time.Date(2026, 11, 30, 9, 0, 0, milliseconds*1_000_000+500, time.UTC)
	}
	for _, test := range []struct {
		name, message string
		since, want   int // milliseconds; want 0: there is none
	}{
		{"the last of two", "snapshot", 0, 1200},
		{"in the millisecond in which the command began", "snapshot", 1200, 1200},
		{"of a command before", "snapshot", 1201, 0},
		{"a message of several words", "the VM runs", 1201, 1900},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := lastLine([]byte(log), test.message, at(test.since))
			if (err == nil) != (test.want > 0) || test.want > 0 && !got.Equal(at(test.want).Truncate(time.Millisecond)) {
				t.Errorf("%v, %v; want %d ms", got, err, test.want)
			}
		})
	}
}
