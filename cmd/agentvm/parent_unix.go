//go:build !windows

package main

import (
	"os"
	"time"
)

// parentTime is how often a process looks whether its parent lives. A signal at the parent's end (PR_SET_PDEATHSIG) would come at the end of the
// parent's thread.
const parentTime = 500 * time.Millisecond

// waitForParent returns when the process that has started this one has ended, or when done is closed.
func waitForParent(done <-chan struct{}) {
	parent := os.Getppid()
	if parent <= 1 { // it has ended already, or it is the first process of all
		<-done
		return
	}
	tick := time.NewTicker(parentTime)
	defer tick.Stop()
	for os.Getppid() == parent {
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}
