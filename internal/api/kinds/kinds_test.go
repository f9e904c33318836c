package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"syscall"
	"testing"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/api/live"
	"agentvm/vm"
)

func TestOf(t *testing.T) {
	for _, test := range []struct {
		err  error
		want Kind
	}{
		{client.ErrNotFound, NotFound}, {&fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, NotFound}, {images.ErrNotFound, NotFound}, {syscall.ESRCH, NotFound}, {live.ErrProcessEnded, NotFound},
		{client.ErrExists, Conflict}, {client.ErrRunning, Conflict}, {client.ErrNotRunning, Conflict}, {egress.ErrPolicyChanged, Conflict}, {syscall.EEXIST, Conflict},
		{syscall.ENOTEMPTY, Conflict}, {live.ErrInputEnded, Conflict},
		{&vm.AccessError{}, Denied}, {syscall.EACCES, Denied}, {syscall.EPERM, Denied},
		{&http.MaxBytesError{}, TooLarge}, {os.ErrDeadlineExceeded, Stalled}, {context.Canceled, Ended}, {context.DeadlineExceeded, Timeout},
		{fs.ErrInvalid, Invalid}, {syscall.EISDIR, Invalid}, {syscall.ENOTDIR, Invalid}, {syscall.ENAMETOOLONG, Invalid},
		{syscall.EIO, Internal}, {errors.New("x"), Internal}, {nil, Internal},
	} {
		if got := Of(test.err); got != test.want {
			t.Errorf("%v: %d, want %d", test.err, got, test.want)
		}
		if test.err != nil {
			if got := Of(fmt.Errorf("wrapped: %w", test.err)); got != test.want {
				t.Errorf("%v, wrapped: %d, want %d", test.err, got, test.want)
			}
		}
	}
}
