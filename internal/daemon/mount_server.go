package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"agentvm/internal/daemon/confine"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/host/debugenv"
	"agentvm/internal/host/hostpath"
	"agentvm/vm"
)

// serverTime bounds how long the server of a mount may take to open its directory and to connect to the daemon.
const serverTime = 15 * time.Second

// mountOrder is what a server reads on its standard input, and mountReport the line of JSON that it then writes: it is ready, or has failed.
type (
	mountOrder struct {
		Key   string `json:"key"`
		Mount string `json:"mount"`
	}
	mountReport struct {
		Error string `json:"error,omitempty"`
	}
)

// AddMount mounts a directory in the VM, which runs, as vm.VM.AddMount does, under a server of its own.
func (c *Client) AddMount(ctx context.Context, m vm.Mount) error {
	var err error
	if m.HostPath, err = filepath.Abs(m.HostPath); err != nil {
		return err
	}
	order := mountOrder{Key: newToken(), Mount: m.String()}
	server, err := c.store.startMountServer(ctx, c.name, order)
	if err != nil {
		return err
	}
	if err := c.Client.Change(ctx, daemonrpc.Change{AddMount: order.Key}); err != nil {
		_ = server.Kill() // it ends by itself, too, unless the daemon hangs
		return err
	}
	return nil
}

// RemoveMount is vm.VM.RemoveMount.
func (c *Client) RemoveMount(ctx context.Context, guestPath string, force bool) error {
	return c.Client.Change(ctx, daemonrpc.Change{RemoveMount: &daemonrpc.RemoveMount{GuestPath: guestPath, Force: force}})
}

// startMountServer starts a server, and returns when it is ready.
func (s Store) startMountServer(ctx context.Context, name string, order mountOrder) (*os.Process, error) {
	p, err := s.paths(name)
	if err != nil {
		return nil, err
	}
	args := s.MountCommand
	if len(args) == 0 {
		program, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program, which is the mount's server too: %w", err)
		}
		args = []string{program, "daemon", "mount", "--dir", s.Dir}
	}
	log, err := openAppend(p.log())
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	command := exec.Command(args[0], append(slices.Clone(args[1:]), name)...)
	command.Stderr, command.Dir, command.Env = log, s.Dir, s.environment(Config{})
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe() // command.Wait would close StdoutPipe, while the report is read
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }()
	command.Stdout = write
	detach(command)
	keepToThisProcess()
	err = command.Start()
	_ = write.Close()
	if err != nil {
		return nil, fmt.Errorf("start the mount's server: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, serverTime, fmt.Errorf("the mount's server has not been ready within %v", serverTime))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	b, err := json.Marshal(order)
	if err == nil {
		_, err = in.Write(b)
	}
	_ = in.Close()
	var report mountReport
	if err == nil {
		if err = json.NewDecoder(io.LimitReader(read, maxOffer)).Decode(&report); errors.Is(err, io.EOF) {
			err = fmt.Errorf("the mount's server has ended: the log of %s may say why", name)
		}
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err == nil && report.Error != "" {
		err = errors.New(report.Error)
	}
	go func() { _ = command.Wait() }() // it outlives most processes that start it
	if err != nil {
		_ = command.Process.Kill()
		return nil, err
	}
	return command.Process, nil
}

// ServeMount is the whole life of the server of a mount that is added to a VM: it reads what to serve from in, writes to out when it is ready
// or has failed, and returns when the mount has ended. It confines its process to the directory.
func ServeMount(ctx context.Context, s Store, name string, in io.Reader, out io.WriteCloser) error {
	server, conn, err := s.offerMount(ctx, name, in)
	report := mountReport{}
	if err != nil {
		report.Error = err.Error()
	} else {
		confineMountServer(server)
	}
	err = errors.Join(err, json.NewEncoder(out).Encode(report), out.Close())
	if server == nil {
		return err
	}
	if err == nil {
		err = server.Serve(ctx, conn)
	}
	return errors.Join(err, server.Close())
}

// offerMount opens the directory and offers the mount to the VM's daemon.
func (s Store) offerMount(ctx context.Context, name string, in io.Reader) (*vm.MountServer, net.Conn, error) {
	var order mountOrder
	if err := json.NewDecoder(io.LimitReader(in, maxOffer)).Decode(&order); err != nil {
		return nil, nil, fmt.Errorf("read what to mount: %w", err)
	}
	var m vm.Mount
	if err := m.UnmarshalText([]byte(order.Mount)); err != nil {
		return nil, nil, err
	}
	p, err := s.existing(name)
	if err != nil {
		return nil, nil, err
	}
	st, err := p.readState(name)
	if err != nil {
		return nil, nil, err
	}
	config, err := readConfig(p.config())
	if err != nil {
		return nil, nil, err
	}
	server, err := config.openMountServer(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	conn, err := offer(ctx, p, st, mountOffer{Key: order.Key, Mount: order.Mount, Identity: server.Mount().Identity})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("connect to the daemon of %s: %w", name, err), server.Close())
	}
	return server, conn, nil
}

// openMountServer opens the directory of a mount that is to be added to a VM with this configuration.
func (c Config) openMountServer(ctx context.Context, m vm.Mount) (*vm.MountServer, error) {
	config := c.pinned()
	config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("mount", m.GuestPath)
	server, err := vm.OpenMountServer(ctx, config, m)
	if err != nil {
		return nil, err
	}
	config.Mounts = append(config.Mounts, server.Mount())
	for _, path := range []string{c.CaptureFile, c.NetworkLog} {
		if path == "" {
			continue
		}
		file, err := config.OpenOutput(path, hostpath.Find(c.HostPaths, path), os.O_APPEND) // which refuses one that the guest could change
		if err == nil {
			err = file.Close()
		}
		if err != nil {
			return nil, errors.Join(err, server.Close())
		}
	}
	return server, nil
}

// offer connects to the daemon as connectOnce does, and gives it an offer.
func offer(ctx context.Context, p paths, st state, o mountOffer) (net.Conn, error) {
	conn, err := openChannel(ctx, p, st, Mount)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(connectTime))
	var w welcome
	err = writeMessage(conn, o)
	if err == nil {
		err = readMessageUpTo(conn, &w, maxOffer)
	}
	if err == nil && w.Error != "" {
		err = fmt.Errorf("it refused: %.1000s", w.Error)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// confineMountServer leaves this process the directory of the mount, and nothing else.
func confineMountServer(server *vm.MountServer) {
	if debugenv.Has("noconfine") {
		return
	}
	rules := confine.Rules{Read: []string{"/proc/self", "/dev/null"}}
	if server.Mount().FixedHost() {
		rules.ReadMounts = append(rules.ReadMounts, server.Dir())
	} else {
		rules.WriteMounts = append(rules.WriteMounts, server.Dir())
	}
	for _, l := range confine.Process(rules) {
		if !l.InForce {
			server.Logger().Info("the mount's server is not confined by this layer", "layer", l.Name, "note", l.Note)
		}
	}
}
