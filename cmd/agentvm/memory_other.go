//go:build !linux

package main

func availableMemory() (uint64, bool) { return 0, false }
