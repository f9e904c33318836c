//go:build !linux

package mount

import (
	"errors"
	"os"
)

// watcher is nothing here: kqueue wants an open descriptor of each file, and ReadDirectoryChangesW a path, which a guest can make mean another
// directory.
type watcher struct{}

func newWatcher(*os.File) (*watcher, error) { return nil, errors.ErrUnsupported }

func (*watcher) close()                                                  {}
func (*watcher) open() bool                                              { return false }
func (*watcher) reserve() bool                                           { return false }
func (*watcher) unreserve()                                              {}
func (*watcher) remove(watchID)                                          {}
func (*watcher) wait() bool                                              { return false }
func (*watcher) read(func(id watchID, mask, cookie uint32, name string)) {}
func (*Server) watchDir(*watcher, string, identity) (id watchID, err error) {
	return 0, errors.ErrUnsupported
}
