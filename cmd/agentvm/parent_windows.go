package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// parentTime is how often a process looks whether it still has to wait, in milliseconds.
const parentTime = 500

// waitForParent returns when the process that has started this one has ended, or when done is closed.
func waitForParent(done <-chan struct{}) {
	parent, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(os.Getppid()))
	if err != nil { // it has ended already, or is another user's
		<-done
		return
	}
	defer func() { _ = windows.CloseHandle(parent) }()
	for {
		if event, err := windows.WaitForSingleObject(parent, parentTime); event != uint32(windows.WAIT_TIMEOUT) || err != nil {
			return
		}
		select {
		case <-done:
			return
		default:
		}
	}
}
