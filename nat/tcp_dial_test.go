package nat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

// denial is a refusal as egress makes it.
type denial struct{}

func (denial) Error() string { return "the policy says no" }
func (denial) Denied() bool  { return true }

func TestDialFailureReasons(t *testing.T) {
	system := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	cases := []struct {
		name string
		err  error
		want Reason
	}{
		{"denied", denial{}, ReasonPolicy},
		{"denied, wrapped", fmt.Errorf("dial: %w", denial{}), ReasonPolicy},
		{"limit", &LimitError{Limit: "things", Maximum: 1}, ReasonLimit},
		{"refused", system(syscall.ECONNREFUSED), ReasonRefused},
		{"refused by both addresses", errors.Join(system(syscall.ECONNREFUSED), system(syscall.ECONNREFUSED)), ReasonRefused},
		{"no network", system(syscall.ENETUNREACH), ReasonUnreachable},
		{"no host", system(syscall.EHOSTUNREACH), ReasonUnreachable},
		{"time-out of ours", errDialTimeout, ReasonTimeout},
		{"time-out of the system's", system(syscall.ETIMEDOUT), ReasonTimeout},
		{"deadline", system(os.ErrDeadlineExceeded), ReasonTimeout},
		{"deadline of a context", context.DeadlineExceeded, ReasonTimeout},
		{"ended", errEnded, ReasonShutdown},
		{"no descriptors", system(syscall.EMFILE), ReasonError},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := dialFailure(c.err); got != c.want {
				t.Errorf("%v: reason %q, want %q", c.err, got, c.want)
			}
		})
	}
}

func TestEveryNameIsKnown(t *testing.T) {
	seen := map[string]bool{}
	for r := ReasonNone; r <= ReasonError; r++ {
		if name := r.String(); name == "unknown" || name == "" || seen[name] {
			t.Errorf("reason %d is called %q", r, name)
		} else {
			seen[name] = true
		}
	}
	for k := FlowOpened; k <= LimitWarning; k++ {
		if name := k.String(); name == "unknown" || name == "" || seen[name] {
			t.Errorf("kind %d is called %q", k, name)
		} else {
			seen[name] = true
		}
	}
	if got := (ReasonError + 1).String(); got != "unknown" {
		t.Errorf("a reason that does not exist is called %q", got)
	}
}
