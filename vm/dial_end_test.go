package vm

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"agentvm/internal/capnprpc"
)

// When the VM has ended, the error of a dial or a listener says why, and is a *net.OpError as all their errors are.
func TestLocalFault(t *testing.T) {
	v := &VM{halted: make(chan struct{}), cause: ErrStopped}
	close(v.halted)
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: localAddr("127.0.0.1:9"), Err: syscall.ECONNREFUSED}
	for _, test := range []struct{ err, want error }{
		{&net.OpError{Op: "dial", Err: capnprpc.ErrClosed}, ErrStopped},
		{ErrStopped, ErrStopped},
		{refused, syscall.ECONNREFUSED},
	} {
		err := localFault("dial", "127.0.0.1:9", v.explainFiles(test.err))
		var op *net.OpError
		if !errors.As(err, &op) || op.Addr.String() != "127.0.0.1:9" || !errors.Is(err, test.want) {
			t.Errorf("%v became %#v", test.err, err)
		}
	}
}
