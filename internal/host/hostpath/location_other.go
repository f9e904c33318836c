//go:build !linux

package hostpath

import "os"

// boot is empty, because the numbers of devices do not change here.
func boot() string { return "" }

// location is always unknown: there are no bind mounts here.
type location struct{}

func locate(*os.File, string) location { return location{} }

func (location) canonical(mountTable) string { return "" }

type mountTable struct{}

func readMounts() mountTable { return mountTable{} }

// addressOf returns the path, which was checked, because a held file has no other name here.
func addressOf(_ entry, path string) string { return path }
