package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"agentvm/egress"
	"agentvm/rpc"
)

// UnixSocket is a Unix socket of the host that the guest's programs find at a path of theirs. Whoever may open it there
// can do what the socket's server lets the user do who runs the VM.
type UnixSocket struct {
	// Host is the path on the host; it is dialled anew for each connection of the guest's, so the server may come and go.
	Host string
	// Guest is the path in the guest, absolute and clean. Default: Host, where the host's paths are of that form.
	Guest string
	// Mode is the permission of the socket in the guest. Default: 0666.
	Mode fs.FileMode
}

const (
	maxUnixSockets = 64
	// maxSocketPath is what Linux leaves of sockaddr_un for a path with its NUL, in bytes.
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

// complete fills in what is left out, and checks all.
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

// checkUnixSockets returns a complete copy of the list.
func checkUnixSockets(list []UnixSocket) ([]UnixSocket, error) {
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

// rpcSockets is what the guest is told of them: a name of the host's, which happens to be the guest's path.
func rpcSockets(list []UnixSocket) (sockets []rpc.UnixSocket) {
	for _, s := range list {
		sockets = append(sockets, rpc.UnixSocket{Path: s.Guest, ID: s.Guest, Mode: uint32(s.Mode.Perm())})
	}
	return sockets
}

// errSocket is all that the guest learns of a socket that cannot be reached.
var errSocket = &rpc.Error{Kind: rpc.KindSystem, Errno: 111, Message: "the host's socket cannot be reached"} // ECONNREFUSED

// socketConnector connects the guest to the sockets of its Config, and to nothing else. Nil without any.
func (v *VM) socketConnector() rpc.Connector {
	if len(v.config.UnixSockets) == 0 {
		return nil
	}
	paths := make(map[string]string)
	for _, s := range v.config.UnixSockets {
		paths[s.Guest] = s.Host
		if _, err := os.Stat(s.Host); err != nil {
			v.config.Logger.Warn("a socket of the host that the guest is given is not there yet", "error", err)
		}
	}
	sockets := egress.NewUnixSockets(paths, v.network.tell)
	return func(ctx context.Context, id string) (rpc.Stream, error) {
		c, err := sockets.Dial(ctx, id)
		if err != nil {
			v.config.Logger.Debug("connect the guest to a Unix socket", "error", err)
			return nil, errSocket
		}
		return c, nil
	}
}

// tell passes an event on that does not come from the network's gate. Without a network nobody is told.
func (n *network) tell(e egress.Event) {
	if n != nil {
		n.recorder.tell(e)
	}
}
