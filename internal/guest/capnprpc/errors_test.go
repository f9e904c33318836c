package capnprpc

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/host/errno"
)

// TestErrorIsTheHosts: the number of an Error is found as the host's error of that name.
func TestErrorIsTheHosts(t *testing.T) {
	if err := error(&Error{Errno: errno.ESHUTDOWN}); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("%v is not ESHUTDOWN", err)
	}
	if err := (&Error{Errno: 4711}); err.Unwrap() != nil {
		t.Errorf("an unknown number unwraps to %v", err.Unwrap())
	}
}

// TestLongReason: an error keeps a bounded part of a peer's text.
func TestLongReason(t *testing.T) {
	l := dialHand(t, handGuest{connect: func(to streamwire.Sink) streamwire.Sink {
		out := NewSinkWriter(context.Background(), to, 100, 1)
		out.Abort(errors.New(strings.Repeat("\u00e9", 1<<20)))
		out.Release()
		return swallow()
	}}.serve)
	c, err := l.Dial(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Read(make([]byte, 1)); err == nil || len(err.Error()) < 1000 || len(err.Error()) > maxReason+1000 {
		t.Errorf("%d bytes of an error", len(err.Error()))
	}
}
