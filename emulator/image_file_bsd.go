//go:build unix && !linux

package emulator

func newImageFile() (*source, error) { return unlinkedFile() }
