package main

import (
	"os"
	"sync"
	"time"

	"agentvm/vm"
)

// watchSize calls changed with the terminal's size whenever that changes, until stop is called. Windows sends no signal
// for it, so it looks twice a second.
func watchSize(terminal *os.File, changed func(vm.Size)) (stop func()) {
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(500 * time.Millisecond)
		defer ticker.Stop()
		last, _ := terminalSize(terminal)
		for {
			select {
			case <-ticker.C:
			case <-quit:
				return
			}
			if size, ok := terminalSize(terminal); ok && size != last {
				last = size
				changed(size)
			}
		}
	})
	return func() {
		close(quit)
		done.Wait()
	}
}
