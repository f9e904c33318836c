package vm

// FromBase says whether a VM has gone on from a base.
func FromBase(v *VM) bool { return v.parts.baseKey != "" && v.parts.memory != nil }

// BaseKey names the base that a VM has gone on from or left.
func BaseKey(v *VM) string { return v.parts.baseKey }

// SavedInUse is how many saved machines VMs of this process share.
func SavedInUse() int {
	savedInUse.mu.Lock()
	defer savedInUse.mu.Unlock()
	return len(savedInUse.files)
}
