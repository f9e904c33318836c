package vm

// maxOpenFiles is how many files this process may have open, as far as it needs them: Windows has no limit that is near.
func maxOpenFiles() uint64 { return 1 << 16 }
