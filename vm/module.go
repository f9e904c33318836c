package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"agentvm/internal/host/hostpath"
	"agentvm/internal/host/private"
	"agentvm/internal/machine"
	"agentvm/internal/network/reach"
	"agentvm/internal/network/router"
	"agentvm/internal/work/headtail"
	"agentvm/wasi"
)

const (
	// maxModule bounds a module's file, in bytes: the largest that container2wasm makes hold some GiB of root.
	maxModule = 4 << 30
	// moduleTail is how much is kept of what a module writes besides the command's output, in bytes, for errors.
	moduleTail = 4 << 10
	// moduleBootTimeout is the default of Config.BootTimeout: an emulated x86-64 that is itself emulated boots slowly.
	moduleBootTimeout = 5 * time.Minute
)

// ErrModule is returned for an image that is a WASI module where the guest needs the supervisor of agentvm.
var ErrModule = errors.New("a WASI module runs single commands in a computer of its own, without named VMs, forks, snapshots and copying of files: " +
	"use agentvm exec --image FILE.wasm COMMAND, without -n")

// IsModule reports whether Config.Image names a WASI module on this host: a file whose name ends in .wasm.
func IsModule(image string) bool { return strings.EqualFold(filepath.Ext(image), ".wasm") }

// RunModule runs a command in the computer that a WASI module is: one that container2wasm has made (c.Image, see IsModule), or any with
// the same interface. Each call instantiates the module anew, boots its guest, runs the command by its /bin/sh and ends it.
//
// There is no supervisor in such a guest. Its console carries the command, its standard input and its output, so standard error is part
// of Stdout, and input is text in lines of less than 4 KiB. Command.Timeout counts from when the shell has the command;
// Config.BootTimeout, here 5 minutes by default, bounds the time before, from when the module is compiled. Mounts are preopened directories; the network is that of a VM, with its policy.
// What such a guest cannot do (users, terminals, disks, sockets, masks) is an error. When ctx ends first, its error is returned.
func RunModule(ctx context.Context, c Config, command Command) (*Result, error) {
	if c.BootTimeout <= 0 {
		c.BootTimeout = moduleBootTimeout
	}
	c, err := c.withDefaults()
	if err == nil {
		err = moduleRefusal(c, command)
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", c.Image, err)
	}
	script, err := moduleScript(c, command)
	if err != nil {
		return nil, err
	}
	r, err := runModule(ctx, c, command, script)
	if err != nil {
		err = fmt.Errorf("image %s: %w", c.Image, err)
	}
	return r, err
}

// moduleRefusal returns what a module's guest cannot do.
func moduleRefusal(c Config, command Command) error {
	for what, asked := range map[string]bool{
		"a disk": c.Disk != "", "sockets of the host": len(c.UnixSockets) > 0, "certificates of the host": c.CACertificate != nil,
		"secrets": len(c.Secrets) > 0, "commands of the host": len(c.HostCommands) > 0, "a recording": c.Recorder != nil, "--no-new-privileges": c.NoNewPrivileges, "--read-only-root": c.ReadOnlyRoot, "another kernel": c.Kernel != nil || c.KernelArguments != "", "a platform": c.Platform != "",
		"another user": command.User != "", "a terminal": command.Terminal != nil,
	} {
		if asked {
			return fmt.Errorf("a WASI module cannot have %s, because there is no supervisor of agentvm in it: leave that out, or use an image of a registry", what)
		}
	}
	for _, f := range c.Network.Forwards {
		if f.Localhost {
			return fmt.Errorf("port forward %s: localhost of a WASI module cannot be reached, because there is no supervisor of agentvm in it: leave out localhost", f)
		}
		if f.Listen.Port() == 0 {
			return errors.New("a WASI module's port forwards need a port of this host: name it, as in -p 8080:80")
		}
	}
	for _, m := range c.Mounts {
		switch {
		case m.CopyOnWrite:
			return fmt.Errorf("mount %s: a WASI module cannot have copy-on-write mounts: use :ro", m.HostPath)
		case !m.ReadOnly && (len(m.Protected) > 0 || !slices.Contains(m.Unprotected, ".")):
			return fmt.Errorf("mount %s: paths that programs of the host obey, as .git/hooks, cannot be protected from a WASI module: "+
				"use :ro, or add --unprotected . if the module may change them", m.HostPath)
		}
	}
	return nil
}

// readModule reads the module and checks that it is one.
func readModule(path string) ([]byte, error) {
	place, err := hostpath.Resolve(path)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	module, err := place.ReadAll(maxModule)
	if err != nil {
		return nil, err
	}
	switch {
	case len(module) < 8 || string(module[:4]) != "\x00asm":
		return nil, errors.New("the file is no WebAssembly module: it does not begin with \\0asm")
	case string(module[4:8]) == "\x0d\x00\x01\x00":
		return nil, errors.New("the file is a WebAssembly component (WASI preview 2): have container2wasm make a module for preview 1")
	}
	return module, nil
}

// moduleDirs opens the mounts, with the checks that VMs' mounts have.
func moduleDirs(ctx context.Context, c Config, store string) (dirs []wasi.Dir, err error) {
	set, err := openHostSet(c, store)
	if err != nil {
		return nil, err
	}
	defer set.close()
	if err := set.guard.Remember(ctx, store, set.writable()); err != nil {
		return nil, err
	}
	for _, m := range set.mounts {
		if len(m.masks)+len(m.covered) > 0 {
			err = fmt.Errorf("mount %s: it contains the store of agentvm, a masked path or another mount, which cannot be hidden from a WASI module: "+
				"mount directories without them", m.spec.HostPath)
		}
		var root *os.Root
		if err == nil {
			root, err = m.place.Root()
		}
		if err != nil {
			closeDirs(dirs)
			return nil, err
		}
		dirs = append(dirs, wasi.Dir{Root: root, Guest: m.spec.GuestPath, ReadOnly: m.spec.ReadOnly})
	}
	return dirs, nil
}

func closeDirs(dirs []wasi.Dir) {
	for _, d := range dirs {
		_ = d.Root.Close() // nothing was written
	}
}

// runModule runs the module until the command has ended, and stops it then.
func runModule(ctx context.Context, c Config, command Command, script string) (*Result, error) {
	module, err := readModule(c.Image)
	if err != nil {
		return nil, err
	}
	store, err := c.storeDir()
	if err != nil {
		return nil, err
	}
	run := wasi.CommandConfig{Module: module, Logger: c.Logger, Args: []string{filepath.Base(c.Image)}}
	key, err := private.CodeKey(store)
	if err == nil { // apart from the machine's compiled code, which a module's would displace
		run.Cache, err = machine.NewCodeCache(filepath.Join(store, "compiled-modules"), key) // agentvm system prune knows the name
	}
	if err == nil {
		defer run.Cache.Close(context.WithoutCancel(ctx))
	} else {
		run.Cache = nil
		c.Logger.Warn("compiled code cannot be kept, each start takes longer", "error", err)
	}
	if len(c.Mounts) > 0 {
		if run.Dirs, err = moduleDirs(ctx, c, store); err != nil {
			return nil, err
		}
	}
	if !c.Network.Disabled {
		link := wasi.NewConn(linkSize)
		network, err := router.Open(router.Config{
			Network: c.Network, Link: link.Host(), PlainFrames: true, Ports: reach.NewPorts(c.Access, c.Network.Forwards),
			HostMemory: c.memory, Connections: reach.NewConnections(c.Logger), Logger: c.Logger,
		})
		if err != nil {
			closeDirs(run.Dirs)
			return nil, err
		}
		defer network.Close()
		mac, _ := network.Card()
		// Descriptor 3 is a listening socket from which the module accepts its network card's connection, with QEMU's framing, and 4 the same
		// connection for modules that expect it accepted; mounts follow. Without a network mounts begin at 3.
		run.Link, run.Env = link, []string{"LISTEN_FDS=1"}
		run.Args = append(run.Args, "-net", "socket", "-mac", mac.String())
	}
	// The module passes arguments, variables and mounts in 1024 bytes: the script is short and reads the command from the console.
	s := newModuleShell(command, script)
	run.Args = append(run.Args, "--entrypoint", "/bin/sh", "--", "-c", s.prelude())
	run.Compiled = func() {
		clear(key)
		if c.BeforeRun != nil {
			c.BeforeRun()
		}
	}
	return s.run(ctx, run, c.BootTimeout)
}

var shellName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// moduleScript is what the guest's shell evaluates, without the marks.
func moduleScript(c Config, command Command) (string, error) {
	if _, err := command.Arguments(); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, kv := range slices.Concat(c.Env, command.Env) {
		key, value, _ := strings.Cut(kv, "=")
		if !shellName().MatchString(key) {
			return "", fmt.Errorf("environment variable %.80q: in a WASI module its name has to be one of the shell's: letters, digits and _", key)
		}
		fmt.Fprintf(&b, "export %s=%s\n", key, quoteShell(value))
	}
	line := command.Line
	if line == "" {
		quoted := make([]string, len(command.Args))
		for i, arg := range command.Args {
			quoted[i] = quoteShell(arg)
		}
		line = "exec " + strings.Join(quoted, " ")
	}
	if command.Dir != "" {
		fmt.Fprintf(&b, "cd -- %s && ", quoteShell(command.Dir))
	}
	fmt.Fprintf(&b, "/bin/sh -c %s 2>&1", quoteShell(line)) // modules of agentvm have standard error apart, with the machine's own messages
	if command.Stdin == nil {
		b.WriteString(" </dev/null")
	}
	return b.String(), nil
}

func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// run runs the module to the command's end.
func (s *moduleShell) run(ctx context.Context, config wasi.CommandConfig, boot time.Duration) (*Result, error) {
	module, stop := context.WithCancel(ctx)
	defer stop()
	input, feed := io.Pipe()
	started, tail := make(chan struct{}), headtail.New(moduleTail)
	s.console = tail
	config.Stdin, config.Stdout, config.Stderr = input, s, tail
	config.Started = func() { close(started) }
	ended := make(chan error, 1)
	go func() {
		code, err := wasi.RunCommand(module, config)
		if err == nil {
			err = fmt.Errorf("the module ended by itself with exit code %d", code)
		}
		_ = input.CloseWithError(io.ErrClosedPipe) // ends the feeding goroutine
		ended <- err
	}()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		s.feed(module, feed)
	}()
	reason := s.await(ctx, started, ended, boot)
	stop()
	_ = input.CloseWithError(io.ErrClosedPipe)
	if reason.moduleErr == nil {
		<-ended
	}
	if s.command.Stdin == nil {
		<-fed // else a Read of the caller's may block it
	}
	kept, _ := tail.Take()
	return s.result(ctx, reason, boot, string(kept))
}

// moduleEnd is why a module was ended.
type moduleEnd struct {
	moduleErr        error // it ended by itself; nil: it was stopped
	inputErr         error // the command's standard input cannot be passed on
	silent, timedOut bool  // no shell answered in the time for booting; Command.Timeout has passed
	byItself         bool  // the command or the module ended, before it was stopped for any other reason
}

// await waits for the command's end, or for what comes before.
func (s *moduleShell) await(ctx context.Context, started <-chan struct{}, ended <-chan error, boot time.Duration) (end moduleEnd) {
	running, done := s.running, s.done
	var booting, timeout <-chan time.Time
	for {
		select {
		case <-started:
			started, booting = nil, time.After(boot)
		case <-running:
			running, booting = nil, nil
			if s.command.Timeout > 0 {
				timeout = time.After(s.command.Timeout)
			}
		case <-done:
			end.byItself = true
			return end
		case <-booting:
			end.silent = true
			return end
		case <-timeout:
			end.timedOut = true
			return end
		case <-ctx.Done():
			return end
		case end.inputErr = <-s.inputErr:
			return end
		case end.moduleErr = <-ended:
			end.byItself = true
			return end
		}
	}
}

// result is called when the module has ended, so that nothing else writes.
func (s *moduleShell) result(ctx context.Context, end moduleEnd, boot time.Duration, said string) (*Result, error) {
	if s.state == moduleRuns {
		s.emit(len(s.held)) // it is no mark: the module has ended
	}
	r := &Result{ExitCode: s.exitCode, TimedOut: end.timedOut}
	if !s.began.IsZero() {
		r.Duration = time.Since(s.began)
	}
	if s.kept != nil {
		kept, gap := s.kept.Take()
		r.Stdout, r.StdoutTruncated = kept, Truncation(gap)
	}
	about := ""
	if said = strings.TrimSpace(said); said != "" {
		about = fmt.Sprintf("; its console said at last: %.400q", said[max(0, len(said)-400):])
	}
	switch {
	case s.writeErr != nil:
		return r, fmt.Errorf("write the command's output: %w", s.writeErr)
	case s.state == moduleEnded && end.byItself: // what ends while it is being stopped has not ended in order
		return r, nil
	case end.inputErr != nil:
		return r, fmt.Errorf("the command's standard input: %w", end.inputErr)
	case end.timedOut:
		r.ExitCode, r.Signal = 128+9, 9
		return r, nil
	case ctx.Err() != nil:
		return r, ctx.Err()
	case end.silent:
		return nil, fmt.Errorf("no shell answered within %v: the module is none of container2wasm's, its image has no /bin/sh, or it hangs%s", boot, about)
	}
	return nil, fmt.Errorf("%w before the command had ended: a module must be a container of container2wasm for WASI preview 1, with a shell%s", end.moduleErr, about)
}
