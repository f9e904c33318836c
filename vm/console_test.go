package vm

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"agentvm/internal/machine"
)

func TestConsoleKeepsTheEnd(t *testing.T) {
	c := &console{}
	for range 100 {
		_, _ = c.Write(bytes.Repeat([]byte("x"), 4000))
	}
	_, _ = c.Write([]byte("the end"))
	got := c.bytes()
	if len(got) != consoleTail || !bytes.HasSuffix(got, []byte("xthe end")) {
		t.Errorf("%d bytes ending in %q", len(got), got[len(got)-20:])
	}
}

type failingWriter struct{ writes int }

func (w *failingWriter) Write([]byte) (int, error) { w.writes++; return 0, errors.New("full") }

func TestConsoleGivesUpACopyThatFails(t *testing.T) {
	w := &failingWriter{}
	c := &console{copy: w}
	for range 3 {
		if n, err := c.Write([]byte("text")); n != 4 || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
	}
	if w.writes != 1 {
		t.Errorf("%d writes to a copy that failed, want 1", w.writes)
	}
}

func TestExplain(t *testing.T) {
	tests := []struct {
		name    string
		exit    machine.Exit
		err     error
		console string
		reason  Reason
		want    string
	}{
		{"power off", machine.Exit{Reason: machine.PowerOff}, nil, "", PoweredOff, "the guest powered itself off (its console is empty)"},
		{"reboot", machine.Exit{Reason: machine.Reboot}, nil, "bye\r\n", Rebooted, "the guest rebooted itself; its console ends with\n  | bye"},
		{"panic", machine.Exit{Reason: machine.Reboot}, nil, "Kernel panic - not syncing: x\n", Panicked, "the guest had a kernel panic; its console ends with\n  | Kernel panic - not syncing: x"},
		{"failure", machine.Exit{Reason: machine.Failure, Code: 7}, nil, "", Failed, "the guest reported a failure: code 7 (its console is empty)"},
		{"broken", machine.Exit{}, errors.New("trap"), "", Broken, "the guest broke its machine: trap (its console is empty)"},
		{
			"hostile console", machine.Exit{Reason: machine.PowerOff}, nil, "a\x1b[2Jb\xff\x00c\u202e\n", PoweredOff,
			"the guest powered itself off; its console ends with\n  | a?[2Jb??c?",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := explain(test.exit, test.err, []byte(test.console))
			if e.Reason != test.reason {
				t.Errorf("reason %q, want %q", e.Reason, test.reason)
			}
			if e.Error() != test.want {
				t.Errorf("error %q, want %q", e.Error(), test.want)
			}
		})
	}
}

func TestReadableShowsAPanicsCause(t *testing.T) {
	text := "before\nKernel panic - not syncing: cause\n" + strings.Repeat("[<ffff>] trace\n", 40)
	if got := readable([]byte(text), 5); !strings.Contains(got, "not syncing: cause") || strings.Count(got, "\n") > 5 {
		t.Errorf("got %q", got)
	}
}
