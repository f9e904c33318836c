//go:build !linux

package mount

import (
	"errors"
	"math"
	"os"
)

// Watcher is nothing here: kqueue wants an open descriptor of each file, and ReadDirectoryChangesW a path, which a guest can make mean another
// directory.
type Watcher struct{}

func (*Watcher) join(*hostEvents, *os.File) error { return errors.ErrUnsupported }
func (*Watcher) leave(*hostEvents)                {}
func (*Watcher) remove(*hostEvents, watchID)      {}
func (*Server) watchDir(*hostEvents, string, identity) (id watchID, err error) {
	return 0, errors.ErrUnsupported
}

func maxUserWatches() int64 { return math.MaxInt32 }
