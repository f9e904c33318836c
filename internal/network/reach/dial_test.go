package reach

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"agentvm/internal/test/leaktest"
)

// TestMain looks for goroutines that connections leave behind.
func TestMain(m *testing.M) { leaktest.Main(m) }

// The reason why a VM has ended is a *net.OpError as all errors of dials and listeners are, and what is one stays as it is.
func TestLocalFault(t *testing.T) {
	stopped := errors.New("the VM has been stopped")
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: localAddr("127.0.0.1:9"), Err: syscall.ECONNREFUSED}
	for _, test := range []struct{ err, want error }{
		{stopped, stopped},
		{refused, syscall.ECONNREFUSED},
	} {
		err := localFault("dial", "127.0.0.1:9", test.err)
		var op *net.OpError
		if !errors.As(err, &op) || op.Addr.String() != "127.0.0.1:9" || !errors.Is(err, test.want) {
			t.Errorf("%v became %#v", test.err, err)
		}
	}
}
