package daemonrpc

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

func TestChange(t *testing.T) {
	c := dialFake(t, &fakeDaemon{})
	idle := time.Minute
	if err := c.Change(t.Context(), Change{CloseForward: "127.0.0.1:1/tcp", IdleTimeout: &idle}); err != nil {
		t.Error(err)
	}
	if err := c.Change(t.Context(), Change{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v, want EINVAL", err)
	}
}
