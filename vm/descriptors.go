package vm

import (
	"sync"

	"agentvm/internal/budget"
)

// descriptors counts the files of the host that the guests of this process hold open in their mounts. They have half of what the process may
// open: the rest is for disks, connections, and whatever its owner does, as saving and stopping the VM.
var descriptors = sync.OnceValue(func() *budget.Budget { return budget.New(int64(maxOpenFiles()/2), nil) })
