package daemon

import (
	"errors"
	"io"
	"os"

	"agentvm/internal/daemon/watchdog"
)

// Owner binds the life of one daemon to that of this process. The daemon that a Store with this Owner starts switches its VM off when
// the Owner is closed, and when this process ends in any way. It is for a VM that runs one command.
type Owner struct {
	read, write *os.File // a pipe; the daemon's standard input is its read end
	ended       chan struct{}
	how         string
}

// NewOwner makes an Owner, which must be closed.
func NewOwner() (*Owner, error) {
	o := &Owner{ended: make(chan struct{})}
	var err error
	o.read, o.write, err = os.Pipe()
	return o, err
}

// Close ends the daemon.
func (o *Owner) Close() error { return errors.Join(o.write.Close(), o.read.Close()) }

// Ended is closed when the process of the daemon has ended.
func (o *Owner) Ended() <-chan struct{} { return o.ended }

// How returns, after Ended, how the process ended.
func (o *Owner) How() string { return o.how }

func (o *Owner) end(how string) {
	if how == "signal: "+watchdog.Signal.String() {
		how = "the kernel's watchdog ended it, for it stood still"
	}
	o.how = how
	close(o.ended)
}

// ownedFlag tells a daemon that its standard input is its owner's pipe.
const ownedFlag = "--owned"

// followOwner stops the VM when the owner has gone. It runs until the process ends, because no other way ends a blocked read of a pipe
// on every system.
func (d *daemon) followOwner(owner io.Reader) {
	_, _ = io.Copy(io.Discard, owner)
	d.order("the process that it was started for has ended", 0)
}
