package capnprpc

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"agentvm/internal/capnprpc/streamwire"
)

// sameNumbers reports whether the host's errno numbers are the guest's.
const sameNumbers = runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64" || runtime.GOARCH == "riscv64")

// TestErrnoNames: the table must agree with Linux's own numbers where this is Linux.
func TestErrnoNames(t *testing.T) {
	for number, host := range hostErrno {
		err := error(&Error{Errno: number})
		if !errors.Is(err, host) {
			t.Errorf("%d is not %v", number, host)
		}
		if sameNumbers && int32(host) != number {
			t.Errorf("%v is %d here and %d in the table", host, int(host), number)
		}
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
