package hostpath

import "fmt"

// Identity identifies the file to which a configured path led. The zero value is for a path that was not opened yet.
type Identity struct {
	// Path is the path as configured, absolute.
	Path string `json:"path"`
	// Real is the same path without links.
	Real string `json:"real"`
	// Device and File are the device and the inode, or the volume and the file's index. Device is comparable only while Boot,
	// which identifies the host's boot, is the same, because the numbers of disks change. Without Boot it always is.
	Device uint64 `json:"device"`
	File   uint64 `json:"file"`
	Boot   string `json:"boot,omitempty"`
}

// IsZero reports that nothing was opened.
func (i Identity) IsZero() bool { return i.Real == "" }

// Of reports whether i is the identity of a configured path.
func (i Identity) Of(path string) bool { return !i.IsZero() && i.Path == path }

// Find returns the identity of a configured path, or the zero one.
func Find(list []Identity, path string) Identity {
	for _, i := range list {
		if i.Of(path) {
			return i
		}
	}
	return Identity{}
}

// same reports whether two identities are of one file.
func (i Identity) same(other Identity) bool {
	return i.Real == other.Real && i.File == other.File && (i.Device == other.Device || i.Boot != other.Boot)
}

// ChangedError means that a path no longer leads to the file to which it led when it was configured.
type ChangedError struct {
	Was Identity
	// Now is the file that is there now; zero when it was not opened.
	Now Identity
	// Err is why no file was opened; nil when one was.
	Err error
}

func (e *ChangedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s is not any more what it was when it was configured (%s, file %d): %v", e.Was.Path, e.Was.Real, e.Was.File, e.Err)
	}
	return fmt.Sprintf("%s is not any more what it was when it was configured: it was %s, file %d of device %#x, and now %s, file %d of device %#x, is there",
		e.Was.Path, e.Was.Real, e.Was.File, e.Was.Device, e.Now.Real, e.Now.File, e.Now.Device)
}

func (e *ChangedError) Unwrap() error { return e.Err }

// LinkError means that a path leads through a symbolic link where none is followed.
type LinkError struct {
	// Path is the requested path, Link the link, and Target where it leads.
	Path, Link, Target string
	// Root is the directory that guests may change and that has the link; empty when no link at all may be followed.
	Root string
}

func (e *LinkError) Error() string {
	if e.Root == "" {
		return fmt.Sprintf("%s is a link to %s, and no link is followed here", e.Link, e.Target)
	}
	return fmt.Sprintf("%s is a link to %s, and a machine may have made it: it is in %s, which machines can change or could; "+
		"if it leads where you want, name that path itself", e.Link, e.Target, e.Root)
}
