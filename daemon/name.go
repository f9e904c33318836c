package daemon

import "fmt"

const maxName = 63

// CheckName says whether a VM can have this name: 1 to 63 lower-case letters, digits, "_", "." and "-", the first one a
// letter or a digit. Names are directories, on systems that ignore case too.
func CheckName(name string) error {
	ok := name != "" && len(name) <= maxName
	for i := range len(name) {
		c := name[i]
		plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		ok = ok && (plain || i > 0 && (c == '_' || c == '.' || c == '-'))
	}
	if !ok {
		return fmt.Errorf("name %.80q: want up to %d of a-z, 0-9, \"_\", \".\" and \"-\", beginning with a letter or digit", name, maxName)
	}
	return nil
}
