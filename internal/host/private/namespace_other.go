//go:build unix && !linux

package private

// ownerIsUnknown is false: there are no user namespaces.
func ownerIsUnknown(uint32) bool { return false }
