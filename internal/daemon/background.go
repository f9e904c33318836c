package daemon

import "sync"

// background does something that waits long for the host's disk while the VM starts. Each caller of what it returns waits for its end and gets its
// error.
func background(do func() error) (wait func() error) {
	wait = sync.OnceValue(do)
	go func() { _ = wait() }()
	return wait
}
