//go:build !linux && !darwin

package disk

import "os"

// hostBoot returns 0, because this system does not identify its boots.
func hostBoot() uint64 { return 0 }

// syncData makes a file durable.
func syncData(file *os.File) error { return file.Sync() }
