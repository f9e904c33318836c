//go:build !linux

package images

import "testing"

// mountDisk says that only Linux can mount a disk.
func mountDisk(testing.TB, string) (string, bool) { return "", false }

func readMounted(testing.TB, string) map[string]*thing { return nil }
