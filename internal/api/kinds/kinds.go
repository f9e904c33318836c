// Package kinds finds the kind of an error. Each protocol answers the errors of a kind in one way, by a table, so that one line gives a new error its
// answer in all protocols.
package kinds

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"syscall"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/api/live"
	"agentvm/vm"
)

// Kind is what a client can do about an error.
type Kind int

// The kinds. Internal is every error of which no more is known: of the VM, the guest or the host.
const (
	Internal Kind = iota
	Invalid       // the request can never be right
	NotFound      // what it names is not there
	Conflict      // what it names is in another state than the request wants, or is there already
	Denied        // a rule, or the guest's permissions, forbid it
	TooLarge      // it exceeds a limit of size
	Stalled       // the client has not sent the rest of it in time
	Ended         // what it was for has ended: the client has gone, or the server ends
	Timeout       // the time that the request allows is over
)

// Of returns the kind of an error.
func Of(err error) Kind {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	_, denied := errors.AsType[*vm.AccessError](err)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case is(client.ErrNotFound, fs.ErrNotExist, images.ErrNotFound, syscall.ESRCH, live.ErrProcessEnded):
		return NotFound
	case is(client.ErrExists, client.ErrRunning, client.ErrNotRunning, egress.ErrPolicyChanged, fs.ErrExist, syscall.ENOTEMPTY, live.ErrInputEnded):
		return Conflict
	case denied, is(fs.ErrPermission):
		return Denied
	case tooLarge:
		return TooLarge
	case is(os.ErrDeadlineExceeded):
		return Stalled
	case is(context.Canceled):
		return Ended
	case is(context.DeadlineExceeded):
		return Timeout
	case is(fs.ErrInvalid, syscall.ENOTDIR, syscall.EISDIR, syscall.ENAMETOOLONG):
		return Invalid
	}
	return Internal
}
