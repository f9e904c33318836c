//go:build unix && !linux

package machine

func newImageFile() (*source, error) { return unlinkedFile() }
