package vm

import (
	"os"
	"sync"
	"sync/atomic"
)

// rootDisk is a VM's hold on the image's disk. Forks have the same file open: it may have left the store by then.
type rootDisk struct {
	*os.File
	users *atomic.Int32
	close sync.Once
}

func newRootDisk(file *os.File) *rootDisk {
	d := &rootDisk{File: file, users: new(atomic.Int32)}
	d.users.Store(1)
	return d
}

// again returns another hold, while this one is not closed.
func (d *rootDisk) again() *rootDisk {
	d.users.Add(1)
	return &rootDisk{File: d.File, users: d.users}
}

// Close gives up the hold; the last one closes the file. A second time does no harm.
func (d *rootDisk) Close() (err error) {
	d.close.Do(func() {
		if d.users.Add(-1) == 0 {
			err = d.File.Close()
		}
	})
	return err
}
