//go:build linux

package guest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/guest/guestrpc"
)

// frames are what the control port carries in a machine that runs by itself, without a host that speaks RPC: a type, the length of what
// follows as 32 bits, little-endian, and that many bytes. internal/machine/src/standalone.c is the other side.
//
//	to the guest    's' the image's settings, before the machine is captured; 'r' what to run; 'i' standard input
//	from the guest  'k' ready to be captured; 'o' and 'e' standard output and error; 'x' the exit code, one byte; 'n' connect the
//	                network card, one byte: the listening socket's descriptor, or 0 for the first there is
type frames struct {
	port io.ReadWriter
	mu   sync.Mutex // of writes
}

// read waits for a frame. A port without a host has none yet.
func (f *frames) read() (kind byte, payload []byte, err error) {
	var header [5]byte
	if err := f.fill(header[:]); err != nil {
		return 0, nil, err
	}
	payload = make([]byte, binary.LittleEndian.Uint32(header[1:]))
	return header[0], payload, f.fill(payload)
}

func (f *frames) fill(b []byte) error {
	for len(b) > 0 {
		n, err := f.port.Read(b)
		if b = b[n:]; err != nil && !errors.Is(err, guestrpc.ErrHangup) {
			return err
		}
	}
	return nil
}

func (f *frames) write(kind byte, payload []byte) error {
	b := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.port.Write(append(b, payload...))
	return err
}

// invocation is what a standalone machine runs: the image's settings, then the arguments and variables of the module.
type invocation struct {
	entrypoint, cmd, env, args, vars []string
	dirs                             []string // that the runtime gives, each a folder in the share: 0, 1, ...
	user, dir                        string
	now                              time.Time // zero: unknown
	net, mac                         string    // container2wasm's options; empty: not given
}

// read adds a list of texts that begin with a letter and end with a NUL.
func (i *invocation) read(payload []byte) {
	for item := range bytes.SplitSeq(payload, []byte{0}) {
		if len(item) == 0 {
			continue
		}
		text := string(item[1:])
		switch item[0] {
		case 'e':
			i.entrypoint = append(i.entrypoint, text)
		case 'c':
			i.cmd = append(i.cmd, text)
		case 'n':
			i.env = append(i.env, text)
		case 'u':
			i.user = text
		case 'w':
			i.dir = text
		case 'a':
			i.args = append(i.args, text)
		case 'v':
			i.vars = append(i.vars, text)
		case 'p':
			i.dirs = append(i.dirs, text)
		case 't':
			if ns, err := strconv.ParseInt(text, 10, 64); err == nil {
				i.now = time.Unix(0, ns)
			}
		}
	}
}

// command returns what to run. The options before the arguments are container2wasm's: --entrypoint PROGRAM, -net MODE and -mac ADDRESS, and
// -- ends them.
func (i *invocation) command() []string {
	entrypoint, args := i.entrypoint, i.args
options:
	for len(args) > 0 {
		name, value, joined := strings.Cut(args[0], "=")
		switch name {
		case "--":
			args = args[1:]
			break options
		case "-entrypoint", "--entrypoint", "-net", "--net", "-mac", "--mac":
		default:
			break options
		}
		if !joined {
			if len(args) == 1 {
				break options
			}
			value, args = args[1], args[1:]
		}
		args = args[1:]
		switch strings.TrimLeft(name, "-") {
		case "entrypoint":
			entrypoint, i.cmd = []string{value}, nil
		case "net":
			i.net = value
		case "mac":
			i.mac = value
		}
	}
	if len(args) == 0 {
		args = i.cmd
	}
	return append(append([]string{}, entrypoint...), args...)
}

// standalone runs the one command of a machine that is a WASI module, and ends it with the command's exit code. Before that it waits for
// the frame 'r', and in this state the machine is captured.
func standalone() error {
	port, err := openPort(controlPort)
	if err != nil {
		return err
	}
	s, err := New()
	if err != nil {
		return err
	}
	f := &frames{port: port}
	var run invocation
	for {
		kind, payload, err := f.read()
		if err != nil {
			return fmt.Errorf("control port: %w", err)
		}
		run.read(payload)
		if kind == 'r' {
			break
		}
		if err := f.write('k', nil); err != nil {
			return fmt.Errorf("control port: %w", err)
		}
	}
	if !run.now.IsZero() {
		_ = s.SetClock(run.now)
	}
	_ = renewMachineID("", true)
	code, err := s.runStandalone(f, &run)
	if err != nil {
		_ = f.write('e', []byte("agentvm: "+err.Error()+"\n"))
	}
	_ = f.write('x', []byte{byte(code)})
	syncAndReboot(upper{}, syscall.LINUX_REBOOT_CMD_POWER_OFF)
	return nil
}

// runStandalone runs the command until it has ended, and with it all its children, and returns its exit code.
func (s *Supervisor) runStandalone(f *frames, run *invocation) (int, error) {
	const failed = 125
	args := run.command()
	if len(args) == 0 {
		return failed, errors.New("the image has no default command: name one")
	}
	if err := run.connect(f); err != nil {
		return failed, err
	}
	if err := run.mount(); err != nil {
		return failed, err
	}
	_ = writeHosts("/", hostname(), netip.Addr{}, nil) // without it the command runs all the same
	if run.dir != "" {
		if err := os.MkdirAll(path.Join("/", run.dir), 0o755); err != nil {
			return failed, err
		}
	}
	u, err := s.users.find(run.user)
	if err != nil {
		return failed, err
	}
	env := environment(u, false, run.env, run.vars)
	program, err := searchPath(args[0], lookup(env, "PATH"), run.dir)
	var refused *refusal
	if errors.As(err, &refused) {
		return refused.code, err
	}
	if err != nil {
		return 127, err
	}
	var ours, theirs [3]*os.File
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			return failed, err
		}
		if ours[i], theirs[i] = r, w; i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	attr := &syscall.ProcAttr{
		Dir: run.dir, Env: env, Files: []uintptr{theirs[0].Fd(), theirs[1].Fd(), theirs[2].Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	if u.uid != 0 || u.gid != 0 || len(u.groups) > 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups}
	}
	ended := make(chan syscall.WaitStatus, 1)
	if _, err := s.reaper.start(program, args, attr, func(status syscall.WaitStatus) { ended <- status }); err != nil {
		err = explain(err, program, guestrpc.Request{Dir: run.dir}, attr.Dir)
		if errors.As(err, &refused) {
			return refused.code, err
		}
		return failed, err
	}
	for _, file := range theirs {
		_ = file.Close()
	}
	go f.feed(ours[0])
	var outputs sync.WaitGroup
	outputs.Go(func() { f.copy('o', ours[1]) })
	outputs.Go(func() { f.copy('e', ours[2]) })
	status := <-ended
	_ = syscall.Kill(-1, syscall.SIGKILL) // its children hold its output open
	outputs.Wait()
	return exitStatus(status).Code, nil
}

// connect brings the network up if one is asked for: the host accepts the card's connection, and a DHCP server on it says the rest.
func (i *invocation) connect(f *frames) error {
	if i.net == "" {
		return nil
	}
	mode, listener, named := strings.Cut(i.net, "=listenfd=")
	descriptor, err := strconv.ParseUint(cmp.Or(listener, "0"), 10, 8)
	if mode != "socket" || err != nil || named && descriptor == 0 {
		return fmt.Errorf("-net %s: want socket, or socket=listenfd=N for another descriptor of the listening socket", i.net)
	}
	restored := &guestrpc.Restored{NewIdentity: true}
	if i.mac != "" {
		mac, err := net.ParseMAC(i.mac)
		if err != nil || len(mac) != 6 {
			return fmt.Errorf("-mac %s: want an Ethernet address, as 02:00:00:00:00:01", i.mac)
		}
		restored.MAC = mac
	}
	if err := f.write('n', []byte{byte(descriptor)}); err != nil {
		return fmt.Errorf("control port: %w", err)
	}
	var card nic
	warning := card.configure(&guestrpc.NetworkParams{}, restored, false)
	if warning == "" {
		var params *guestrpc.NetworkParams
		if params, err = askLease(defaultDevice); err != nil {
			return fmt.Errorf("-net %s: %w", i.net, err)
		}
		warning = card.configure(params, nil, false)
	}
	if warning != "" {
		return errors.New(warning)
	}
	return nil
}

// mount mounts the directories that the runtime gives at their names, which are relative to the root where they are not absolute. One named as the
// root itself has no place.
func (i *invocation) mount() error {
	if len(i.dirs) == 0 {
		return nil
	}
	all, err := os.MkdirTemp("/run", "runtime") // mountRest has made /run
	if err != nil {
		return err
	}
	if err := mountVirtiofs("runtime", all, syscall.MS_NODEV); err != nil {
		return err
	}
	for number, name := range i.dirs {
		target := path.Join("/", name)
		if target == "/" {
			continue
		}
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("directory %s of the runtime: %w", name, err)
		}
		if err := syscall.Mount(path.Join(all, strconv.Itoa(number)), target, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount the runtime's directory on %s: %w", target, err)
		}
	}
	_ = syscall.Unmount(all, detachNow)
	return os.Remove(all)
}

// feed gives the program its standard input, until the machine ends.
func (f *frames) feed(w *os.File) {
	for {
		kind, payload, err := f.read()
		if err != nil {
			return
		}
		switch {
		case kind != 'i':
		case len(payload) == 0:
			_ = w.Close()
		default:
			_, _ = w.Write(payload) // a program that reads no more does not matter
		}
	}
}

func (f *frames) copy(kind byte, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && f.write(kind, buffer[:n]) != nil || err != nil {
			return
		}
	}
}
