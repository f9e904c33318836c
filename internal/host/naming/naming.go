// Package naming checks the names of VMs and snapshots: they are directories and files, on systems that ignore
// case too, and appear in commands as NAME:/path.
package naming

import "fmt"

// Max bounds the bytes of a name.
const Max = 63

// Check checks a name: 1 to 63 lower-case letters, digits, "_", "." and "-", the first one a letter or a
// digit. The error begins with what: "name", "snapshot name".
func Check(what, name string) error {
	ok := name != "" && len(name) <= Max
	for i := range len(name) {
		c := name[i]
		plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		ok = ok && (plain || i > 0 && (c == '_' || c == '.' || c == '-'))
	}
	if !ok {
		return fmt.Errorf("%s %.80q: want up to %d of a-z, 0-9, \"_\", \".\" and \"-\", beginning with a letter or digit", what, name, Max)
	}
	return nil
}
