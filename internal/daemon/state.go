package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// protocolVersion is the version of the state file and the handshake. The protocol after the handshake grows compatibly.
const protocolVersion = 2

const (
	tokenBytes = 32
	// maxState bounds a state file, in bytes.
	maxState = 16 << 10
)

// state is state.json: how to connect to a daemon. Only the daemon writes it, after it has begun to listen. Nothing reads it without a
// daemon, so no failure of the power needs to leave it.
type state struct {
	Version int       `json:"version"` // protocolVersion
	Name    string    `json:"name"`
	Pid     int       `json:"pid"`
	Started time.Time `json:"started"`           // the process
	Address string    `json:"address"`           // socketAddress or 127.0.0.1:PORT
	Token   string    `json:"token"`             // 64 hexadecimal digits
	Program string    `json:"program"`           // its version
	Metrics string    `json:"metrics,omitempty"` // 127.0.0.1:PORT or [::1]:PORT
	// Restarts is how often the guest has restarted itself under this daemon, and Restarted the time of the last one.
	Restarts  int       `json:"restarts,omitempty"`
	Restarted time.Time `json:"restarted,omitzero"`
}

// VersionError says that a daemon has another protocol version than this program.
type VersionError struct {
	Client, Daemon int
	Pid            int    // the daemon's; 0: not known
	Program        string // version of the daemon's program; empty: not known
}

func (e *VersionError) Error() string {
	program, process := "", "its process"
	if e.Program != "" {
		program = fmt.Sprintf(" (agentvm %.40q)", e.Program)
	}
	if e.Pid > 0 {
		process += fmt.Sprintf(" (pid %d)", e.Pid)
	}
	return fmt.Sprintf("the daemon speaks protocol %d and this program protocol %d: stop the VM with the program that started it%s, "+
		"or end %s, and start it again", e.Daemon, e.Client, program, process)
}

func newToken() string {
	b := make([]byte, tokenBytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// parseState reads a state file of the VM called name. It accepts only the socket in the VM's folder or a port of 127.0.0.1.
func parseState(name string, b []byte) (s state, err error) {
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("state file of %s: %w", name, err)
	}
	if s.Version != protocolVersion {
		return s, &VersionError{Client: protocolVersion, Daemon: s.Version, Pid: s.Pid, Program: s.Program}
	}
	address, err := netip.ParseAddrPort(s.Address)
	token, err2 := hex.DecodeString(s.Token)
	switch {
	case s.Name != name:
		return s, fmt.Errorf("state file of %s: it is of a VM called %.80q", name, s.Name)
	case s.Pid <= 0:
		return s, fmt.Errorf("state file of %s: process %d", name, s.Pid)
	case s.Address != socketAddress && (err != nil || address.Addr() != netip.AddrFrom4([4]byte{127, 0, 0, 1}) || address.Port() == 0):
		return s, fmt.Errorf("state file of %s: address %.80q: want %s or 127.0.0.1:PORT", name, s.Address, socketAddress)
	case checkMetrics(s.Metrics) != nil:
		return s, fmt.Errorf("state file of %s: %w", name, checkMetrics(s.Metrics))
	case err2 != nil || len(token) != tokenBytes:
		return s, fmt.Errorf("state file of %s: the token is not %d bytes in hexadecimal", name, tokenBytes)
	}
	return s, nil
}

// paths are the files of one VM.
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
func (p paths) log() string      { return filepath.Join(p.dir, "daemon.log") }
func (p paths) audit() string    { return filepath.Join(p.dir, "network.log") }
func (p paths) visits() string   { return filepath.Join(p.dir, "previews.log") }
func (p paths) restore() string  { return filepath.Join(p.dir, "restore.json") }
func (p paths) disk() string     { return filepath.Join(p.dir, "disk.img") }
func (p paths) diskMade() string { return filepath.Join(p.dir, "disk.made") }
func (p paths) jobs() string     { return filepath.Join(p.dir, "jobs") }

func (p paths) readState(name string) (state, error) {
	b, _, err := private.ReadSecret(p.state(), maxState)
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
	return atomicfile.WriteVolatile(p.state(), append(b, '\n'))
}

// ending is end.json: how the last daemon ended. A daemon removes it at its start.
type ending struct {
	Ended   time.Time `json:"ended,omitzero"`
	Error   string    `json:"error,omitempty"`   // why it ended by itself
	Crashed bool      `json:"crashed,omitempty"` // written by the process that found the daemon dead
	Reason  string    `json:"reason,omitempty"`  // what ended it, in words
}

func (p paths) readEnd() (e ending, err error) {
	b, err := private.ReadFile(p.end(), maxState)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	return e, err
}

func (p paths) writeEnd(e ending) error {
	const limit = maxState / 8 // JSON may need six bytes for one
	e.Error, e.Reason = e.Error[:min(len(e.Error), limit)], e.Reason[:min(len(e.Reason), limit)]
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(p.end(), append(b, '\n'))
}
