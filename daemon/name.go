package daemon

import "agentvm/internal/naming"

// CheckName says whether a VM can have this name: 1 to 63 lower-case letters, digits, "_", "." and "-", the first one a
// letter or a digit. Names are directories, on systems that ignore case too.
func CheckName(name string) error { return naming.Check("name", name) }
