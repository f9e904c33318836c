package reach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"agentvm/egress"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
	"agentvm/internal/host/hostpath"
)

// UnixSocket is a Unix socket of the host that the guest's programs can connect to. Each program that may open it
// can do what the socket's server permits the user who runs the VM.
type UnixSocket struct {
	// Host is the path on the host; it is dialled for each connection of the guest, so the server may come and go. It must not be in
	// a writable mount, where the guest could put another one in its place.
	Host string
	// Guest is the path in the guest, absolute and clean. Default: Host, where the host's paths are of that form.
	Guest string
	// Mode is the permission of the socket in the guest. Default: 0666.
	Mode fs.FileMode
	// Identity is where Host led when it was configured. It is ignored when it is of another path. Default: Host is resolved when the
	// VM starts.
	Identity hostpath.Identity
}

const (
	maxUnixSockets = 64
	// maxSocketPath is how many bytes sockaddr_un has for a path in Linux, without the ending NUL.
	maxSocketPath = 107
)

// ParseUnixSocket reads host[:guest][:mode], the mode in octal. Backslashes belong to paths of Windows.
func ParseUnixSocket(spec string) (UnixSocket, error) {
	s, err := parseUnixSocket(spec, runtime.GOOS == "windows")
	if err != nil {
		return UnixSocket{}, fmt.Errorf("socket %q: %w (want host[:guest][:mode])", spec, err)
	}
	return s, nil
}

func parseUnixSocket(spec string, windows bool) (s UnixSocket, err error) {
	drive := ""
	if windows && len(spec) > 2 && spec[1] == ':' && (spec[2] == '\\' || spec[2] == '/') {
		drive, spec = spec[:2], spec[2:]
	}
	parts := strings.Split(spec, ":")
	s.Host = drive + parts[0]
	parts = parts[1:]
	if n := len(parts); n > 0 && !strings.HasPrefix(parts[n-1], "/") {
		mode, err := strconv.ParseUint(parts[n-1], 8, 32)
		if err != nil || mode == 0 || mode > 0o777 {
			return s, fmt.Errorf("%q is neither an absolute path in the guest nor a mode like 0600", parts[n-1])
		}
		s.Mode, parts = fs.FileMode(mode), parts[:n-1]
	}
	switch {
	case len(parts) == 1:
		s.Guest = parts[0]
	case len(parts) > 1:
		return s, errors.New("too many colons")
	}
	return s, s.complete(windows)
}

// complete fills in defaults and checks the result.
func (s *UnixSocket) complete(windows bool) (err error) {
	if s.Host == "" || strings.ContainsRune(s.Host+s.Guest, 0) {
		return errors.New("the host path is empty or a path contains a NUL byte")
	}
	if s.Guest == "" && windows {
		return errors.New("name its path in the guest")
	}
	if s.Host, err = filepath.Abs(s.Host); err != nil {
		return err
	}
	if s.Guest == "" {
		s.Guest = s.Host
	}
	if !path.IsAbs(s.Guest) || path.Clean(s.Guest) != s.Guest || s.Guest == "/" {
		return fmt.Errorf("the guest path %q is not absolute, or not in its shortest form", s.Guest)
	}
	if len(s.Guest) > maxSocketPath {
		return fmt.Errorf("the guest path has %d bytes: a socket's has at most %d", len(s.Guest), maxSocketPath)
	}
	if s.Mode&^fs.ModePerm != 0 {
		return fmt.Errorf("mode %#o: want permissions only, at most 0777", uint32(s.Mode))
	}
	return nil
}

// String returns the specification in the form that ParseUnixSocket reads.
func (s UnixSocket) String() string {
	text := s.Host
	if s.Guest != "" {
		text += ":" + s.Guest
	}
	if s.Mode != 0 {
		text += fmt.Sprintf(":%04o", uint32(s.Mode))
	}
	return text
}

// MarshalText is String.
func (s UnixSocket) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseUnixSocket for a text that is kept, whose reader may have another working directory: the host's path is absolute.
func (s *UnixSocket) UnmarshalText(text []byte) (err error) {
	if *s, err = ParseUnixSocket(string(text)); err == nil && !strings.HasPrefix(string(text), s.Host) {
		err = fmt.Errorf("socket %q: the host's path must be absolute, for the daemon has another working directory", text)
	}
	return err
}

// CheckUnixSockets returns a complete copy of the list.
func CheckUnixSockets(list []UnixSocket) ([]UnixSocket, error) {
	if len(list) > maxUnixSockets {
		return nil, fmt.Errorf("%d Unix sockets: a VM can have at most %d", len(list), maxUnixSockets)
	}
	seen := make(map[string]string)
	var out []UnixSocket
	for _, s := range list {
		if err := s.complete(runtime.GOOS == "windows"); err != nil {
			return nil, fmt.Errorf("Unix socket %s: %w", s.Host, err)
		}
		if other, taken := seen[s.Guest]; taken {
			return nil, fmt.Errorf("sockets %s and %s have the same place in the guest, %s: name another with host:guest", other, s.Host, s.Guest)
		}
		seen[s.Guest] = s.Host
		out = append(out, s)
	}
	return out, nil
}

// GuestSockets returns the sockets for the guest. Each socket's ID, which the guest gives when it connects, is its path in the guest.
func GuestSockets(list []UnixSocket) (sockets []guestrpc.UnixSocket) {
	for _, s := range list {
		sockets = append(sockets, guestrpc.UnixSocket{Path: s.Guest, ID: s.Guest, Mode: uint32(s.Mode.Perm())})
	}
	return sockets
}

// errSocket is what the guest gets for any socket that cannot be reached, whatever the reason.
var errSocket = &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.ECONNREFUSED, Message: "the host's socket cannot be reached"}

// SocketConnector connects the guest to the sockets of the list, and to nothing else; opened are those of the same places on the host. audit
// receives an event of each connection. Without sockets it is nil.
func SocketConnector(list []UnixSocket, opened []*hostpath.Socket, audit func(egress.Event), logger *slog.Logger) guestrpc.Connector {
	if len(list) == 0 {
		return nil
	}
	given := make(map[string]egress.HostSocket)
	for i, s := range list {
		given[s.Guest] = egress.HostSocket{Path: s.Host, Open: opened[i].Address}
		if opened[i].Missing() {
			logger.Warn("a socket of the host that the guest is given is not there yet", "socket", s.Host)
		}
	}
	sockets := egress.NewUnixSockets(given, audit)
	return func(ctx context.Context, id string) (capnprpc.Stream, error) {
		c, err := sockets.Dial(ctx, id)
		if err != nil {
			logger.Debug("connect the guest to a Unix socket", "error", err)
			return nil, errSocket
		}
		return c, nil
	}
}
