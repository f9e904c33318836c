package main

import (
	"os"

	"agentvm/images"
	"agentvm/internal/hostpath"
)

// maxHostFile bounds files that are read into memory: certificates and policies, in bytes.
const maxHostFile = 16 << 20

// hostGuard knows which directories of the host a guest could change. Every path that the user gives on the command line is opened with
// it, so that no link is followed that a guest has made.
func hostGuard() (*hostpath.Guard, error) {
	dir, err := images.DefaultDir()
	if err != nil {
		return nil, err
	}
	return hostpath.Known(dir)
}

// readHostFile reads a file that the user has named.
func readHostFile(path string) ([]byte, error) {
	guard, err := hostGuard()
	if err != nil {
		return nil, err
	}
	return guard.ReadFile(path, hostpath.Identity{}, maxHostFile)
}

// openHostFile opens a file that the user has named, with flags of package os.
func openHostFile(path string, flags int) (*os.File, error) {
	guard, err := hostGuard()
	if err != nil {
		return nil, err
	}
	return guard.OpenFile(path, hostpath.Identity{}, flags, 0o666)
}

// createHostFile makes a file that the user has named, or empties the one that is there.
func createHostFile(path string) (*os.File, error) {
	return openHostFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
}
