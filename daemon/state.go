package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"
)

// protocolVersion is that of the state file and the handshake. What follows the handshake grows compatibly.
const protocolVersion = 1

const (
	tokenBytes = 32
	// maxState bounds a state file.
	maxState = 16 << 10
)

// state is state.json: how to reach a daemon. Only the daemon writes it, after its socket listens.
type state struct {
	Version int       `json:"version"` // protocolVersion
	Name    string    `json:"name"`
	Pid     int       `json:"pid"`
	Started time.Time `json:"started"`           // the process
	Address string    `json:"address"`           // 127.0.0.1:PORT
	Token   string    `json:"token"`             // 64 hexadecimal digits
	Program string    `json:"program"`           // its version
	Metrics string    `json:"metrics,omitempty"` // 127.0.0.1:PORT or [::1]:PORT
}

// VersionError says that a daemon speaks another protocol than this program.
type VersionError struct{ Client, Daemon int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the daemon speaks protocol %d and this program protocol %d: stop the VM with the program that started it, "+
		"or end its process, and start it again", e.Daemon, e.Client)
}

func newToken() string {
	b := make([]byte, tokenBytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// parseState reads a state file of the VM called name. What it lets through leads to a port of this host's loopback.
func parseState(name string, b []byte) (s state, err error) {
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("state file of %s: %w", name, err)
	}
	if s.Version != protocolVersion {
		return s, &VersionError{Client: protocolVersion, Daemon: s.Version}
	}
	address, err := netip.ParseAddrPort(s.Address)
	token, err2 := hex.DecodeString(s.Token)
	switch {
	case s.Name != name:
		return s, fmt.Errorf("state file of %s: it is of a VM called %.80q", name, s.Name)
	case s.Pid <= 0:
		return s, fmt.Errorf("state file of %s: process %d", name, s.Pid)
	case err != nil || address.Addr() != netip.AddrFrom4([4]byte{127, 0, 0, 1}) || address.Port() == 0:
		return s, fmt.Errorf("state file of %s: address %.80q: want 127.0.0.1:PORT", name, s.Address)
	case checkMetrics(s.Metrics) != nil:
		return s, fmt.Errorf("state file of %s: %w", name, checkMetrics(s.Metrics))
	case err2 != nil || len(token) != tokenBytes:
		return s, fmt.Errorf("state file of %s: the token is not %d bytes in hexadecimal", name, tokenBytes)
	}
	return s, nil
}

// paths are those of one VM.
type paths struct{ dir string }

func (p paths) config() string { return filepath.Join(p.dir, "config.json") }
func (p paths) state() string  { return filepath.Join(p.dir, "state.json") }
func (p paths) end() string    { return filepath.Join(p.dir, "end.json") }
func (p paths) lock() string   { return filepath.Join(p.dir, "lock") }
func (p paths) starting() string {
	return filepath.Join(p.dir, "starting")
}
func (p paths) identity() string {
	return filepath.Join(p.dir, "identity.json")
}
func (p paths) log() string     { return filepath.Join(p.dir, "daemon.log") }
func (p paths) audit() string   { return filepath.Join(p.dir, "network.log") }
func (p paths) restore() string { return filepath.Join(p.dir, "restore.json") }
func (p paths) disk() string    { return filepath.Join(p.dir, "disk.img") }
func (p paths) jobs() string    { return filepath.Join(p.dir, "jobs") }

func (p paths) readState(name string) (state, error) {
	b, err := readSmall(p.state(), maxState)
	if err != nil {
		return state{}, err
	}
	return parseState(name, b)
}

func (p paths) writeState(s state) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(p.state(), append(b, '\n'))
}

// ending is end.json: how the last daemon ended. A daemon removes it when it begins.
type ending struct {
	Ended   time.Time `json:"ended,omitzero"`
	Error   string    `json:"error,omitempty"`   // why it ended by itself
	Crashed bool      `json:"crashed,omitempty"` // it did not write this: whoever found it dead did
}

func (p paths) readEnd() (e ending, err error) {
	b, err := readSmall(p.end(), maxState)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	return e, err
}

func (p paths) writeEnd(e ending) error {
	const most = maxState / 8 // JSON may spell a byte with six
	e.Error = e.Error[:min(len(e.Error), most)]
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(p.end(), append(b, '\n'))
}
