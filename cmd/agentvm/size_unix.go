//go:build unix

package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"agentvm/vm"
)

// watchSize calls changed with the terminal's size whenever that changes, until stop is called.
func watchSize(terminal *os.File, changed func(vm.Size)) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGWINCH)
	var done sync.WaitGroup
	done.Go(func() {
		for range signals {
			if size, ok := terminalSize(terminal); ok {
				changed(size)
			}
		}
	})
	return func() {
		signal.Stop(signals)
		close(signals)
		done.Wait()
	}
}
