package vm

import (
	"sync"

	"agentvm/internal/host/budget"
	"agentvm/internal/share/mount"
)

// mountResources are what the mounts of this process' VMs have of the host's in common.
type mountResources struct {
	// descriptors counts the files of the host that guests hold open in their mounts. They have three quarters of what the process may open: the
	// rest is for disks, connections, and whatever its owner does, as saving and stopping the VM.
	descriptors *budget.Budget
	watcher     *mount.Watcher
	watches     *budget.Budget // directories that watcher watches
}

var processMounts = sync.OnceValue(func() *mountResources {
	return &mountResources{budget.New(int64(maxOpenFiles()/4*3), nil), new(mount.Watcher), budget.New(mount.MaxWatches(), nil)}
})

// mountShare is what one VM has of them.
type mountShare struct {
	descriptors, watches *budget.Share
	watcher              *mount.Watcher
}

func newMountShare() *mountShare {
	all := processMounts()
	return &mountShare{all.descriptors.Share(), all.watches.Share(), all.watcher}
}

// give has a server use it.
func (s *mountShare) give(c *mount.Config) {
	c.Descriptors, c.Watcher, c.Watches = s.descriptors, s.watcher, s.watches
}
