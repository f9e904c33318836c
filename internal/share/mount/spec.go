package mount

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"agentvm/internal/host/hostpath"
)

// DefaultGuestPath is where a mount appears in the guest when its specification names no place.
const DefaultGuestPath = "/mnt/host"

// maxGuestPath is Linux' PATH_MAX without the terminating NUL, in bytes.
const maxGuestPath = 4095

// reservedGuestPaths are the guest's own file systems; a mount over them would break the guest.
var reservedGuestPaths = []string{"/proc", "/sys", "/dev"}

// Spec is one parsed value of --mount.
type Spec struct {
	// HostPath is the directory on the host, cleaned, relative paths being relative to the current directory.
	HostPath string
	// GuestPath is the absolute, cleaned place in the guest; never "/".
	GuestPath string
	// ReadOnly is true when the specification ended in ":ro".
	ReadOnly bool
	// CopyOnWrite is true when it ended in ":cow": the guest changes the directory for itself, on its own disk, and the host's files stay as
	// they are. For the host it is a read-only mount. It excludes ReadOnly.
	CopyOnWrite bool
	// Masks are paths below HostPath that the guest does not see, slash-separated, clean and without "..". Each hides a
	// file, or a directory with all below it, whether it exists or not.
	Masks []string
	// Protected are paths below HostPath that the guest cannot change, besides what package protect lists; Unprotected are those that it
	// can although they are protected by default, "." being all.
	Protected, Unprotected []string
	// Identity is which directory HostPath meant when it was configured; when it is of another path, it says nothing. Default: HostPath is
	// resolved when the machine starts. It is not part of the specification's text.
	Identity hostpath.Identity
}

// String returns the specification in the form that Parse reads.
func (s Spec) String() string {
	text := s.HostPath + ":" + s.GuestPath
	switch {
	case s.CopyOnWrite:
		text += ":cow"
	case s.ReadOnly:
		text += ":ro"
	}
	for _, mask := range s.Masks {
		text += maskOption + maskEscape.Replace(mask)
	}
	for _, name := range s.Protected {
		text += protectedOption + maskEscape.Replace(name)
	}
	for _, name := range s.Unprotected {
		text += unprotectedOption + maskEscape.Replace(name)
	}
	return text
}

// FixedHost reports that the guest cannot change the host's files: the mount is read-only or copy-on-write.
func (s Spec) FixedHost() bool { return s.ReadOnly || s.CopyOnWrite }

// MarshalText is String.
func (s Spec) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is Parse.
func (s *Spec) UnmarshalText(text []byte) (err error) {
	*s, err = Parse(string(text))
	return err
}

// maskOption begins a mask in a specification. A colon in a mask is written %3A, a percent sign %25.
const maskOption = ":mask="

// These begin protected and unprotected paths, which come with the masks.
const (
	protectedOption   = ":protected="
	unprotectedOption = ":unprotected="
)

var (
	maskEscape   = strings.NewReplacer("%", "%25", ":", "%3A")
	maskUnescape = strings.NewReplacer("%25", "%", "%3A", ":", "%3a", ":")
)

// Parse reads host[:guest][:ro|:cow][:mask=PATH][:protected=PATH][:unprotected=PATH]..., the paths last. The guest path is DefaultGuestPath when it is left out. A Windows drive letter
// belongs to the host path (`C:\x:/y:ro`); with a forward slash (`C:/x`) only when running on Windows. Parse does not
// look at the file system: NewServer says whether the directory exists.
func Parse(spec string) (Spec, error) {
	s, err := parse(spec, runtime.GOOS == "windows")
	if err != nil {
		return Spec{}, fmt.Errorf("mount %q: %w (want host[:guest][:ro|:cow][:mask=PATH])", spec, err)
	}
	return s, nil
}

// parse is Parse for either kind of host, so that the tests of one cover the other.
func parse(spec string, windows bool) (Spec, error) {
	host, rest := cutHost(spec, windows)
	if host == "" {
		return Spec{}, errors.New("the host path is empty")
	}
	if strings.ContainsRune(spec, 0) {
		return Spec{}, errors.New("a path contains a NUL byte")
	}
	s := Spec{HostPath: filepath.Clean(host), GuestPath: DefaultGuestPath}
	rest, err := s.cutPaths(rest)
	if err != nil {
		return Spec{}, err
	}
	if n := len(rest); n > 0 && (rest[n-1] == "ro" || rest[n-1] == "cow") {
		s.ReadOnly, s.CopyOnWrite, rest = rest[n-1] == "ro", rest[n-1] == "cow", rest[:n-1]
	}
	guest, err := cutGuest(rest)
	if err != nil {
		return Spec{}, err
	}
	if guest != nil {
		s.GuestPath, err = cleanGuest(*guest)
	}
	return s, err
}

// cutHost splits the host path from the parts after it, which keep no leading colon; rest is nil without a colon.
func cutHost(spec string, windows bool) (host string, rest []string) {
	drive := ""
	if hasDrive(spec, windows) {
		drive, spec = spec[:2], spec[2:]
	}
	parts := strings.Split(spec, ":")
	return drive + parts[0], parts[1:]
}

// hasDrive reports whether a specification begins with a Windows drive, such as C:\.
func hasDrive(spec string, windows bool) bool {
	if len(spec) < 3 || spec[1] != ':' {
		return false
	}
	letter := spec[0] | 0x20
	return letter >= 'a' && letter <= 'z' && (spec[2] == '\\' || windows && spec[2] == '/')
}

// cutPaths takes masks, protected and unprotected paths off the end.
func (s *Spec) cutPaths(parts []string) (rest []string, err error) {
	list := func(part string) (*[]string, string) {
		switch {
		case strings.HasPrefix(part, maskOption[1:]):
			return &s.Masks, part[len(maskOption)-1:]
		case strings.HasPrefix(part, protectedOption[1:]):
			return &s.Protected, part[len(protectedOption)-1:]
		case strings.HasPrefix(part, unprotectedOption[1:]):
			return &s.Unprotected, part[len(unprotectedOption)-1:]
		}
		return nil, ""
	}
	first := len(parts)
	for first > 0 {
		if to, _ := list(parts[first-1]); to == nil {
			break
		}
		first--
	}
	for _, part := range parts[first:] {
		to, text := list(part)
		name := maskUnescape.Replace(text)
		if to != &s.Unprotected || name != "." {
			if name, err = CleanMask(name); err != nil {
				return nil, err
			}
		}
		*to = append(*to, name)
	}
	return parts[:first], nil
}

// cutGuest reads what is between the host path and the options: nothing, or the guest path.
func cutGuest(parts []string) (guest *string, err error) {
	switch len(parts) {
	case 0:
		return nil, nil
	case 1:
		return &parts[0], nil
	}
	return nil, fmt.Errorf("unknown option %q", parts[len(parts)-1])
}

// cleanGuest checks where a mount appears. ".." is refused, not resolved: what it means depends on links in the guest.
func cleanGuest(guest string) (string, error) {
	if !strings.HasPrefix(guest, "/") {
		return "", fmt.Errorf("the guest path %q is not absolute", guest)
	}
	for element := range strings.SplitSeq(guest, "/") {
		if element == ".." {
			return "", fmt.Errorf("the guest path %q contains ..", guest)
		}
	}
	guest = path.Clean(guest)
	if guest == "/" {
		return "", errors.New("the guest path is the guest's root")
	}
	if len(guest) > maxGuestPath {
		return "", fmt.Errorf("the guest path is longer than %d bytes", maxGuestPath)
	}
	for _, reserved := range reservedGuestPaths {
		if guest == reserved || strings.HasPrefix(guest, reserved+"/") {
			return "", fmt.Errorf("the guest path %q is inside the guest's %s", guest, reserved)
		}
	}
	return guest, nil
}
