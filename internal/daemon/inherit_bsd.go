//go:build unix && !linux

package daemon

// keepToThisProcess lets programs that this process starts inherit only the descriptors that are handed over: otherwise a daemon would
// hold a shell's locks and pipes for its whole life. Go opens its own descriptors that way; this is for inherited ones.
func keepToThisProcess() { markDescriptors("/dev/fd") }
