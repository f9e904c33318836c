package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/api/mcp"
)

const mcpLong = `Serves a named VM to an agent by the Model Context Protocol, on standard input and output: ten tools that run and manage commands, read
and write files, explain and narrow the network policy or ask the user for more, make snapshots and forks, and list and forward ports.
agentvm mcp install writes the configuration that makes an agent's program start it.

The VM is made when a tool first needs it, as agentvm start would make it with the same flags and the project file, except that it stops after 30
minutes without use unless --idle-timeout says otherwise. It keeps its files, and continues when the agent has gone. Without --vm its name comes from
the current directory's. Tools reach it and its forks and restored snapshots, which are called NAME-..., and no other VM.

Commands run in the first mounted directory. In mounts the guest cannot change the files by which agents' programs are configured.

With --http the tools are served over HTTP, on an address of this host's loopback, to clients that send the token of --token-file, or the one that
is printed on standard error, as "Authorization: Bearer TOKEN".`

const mcpExample = `  agentvm mcp install claude-code -- --mount .
  agentvm mcp --mount .:/work:cow --allow pypi.org
  agentvm mcp --vm dev
  agentvm mcp --http 127.0.0.1:8484 --token-file token`

// mcpFlags are the flags of mcp.
type mcpFlags struct {
	startFlags
	name, http, token string
	audit             auditFlag
}

func (c *cli) mcpCommand() *cobra.Command {
	var f mcpFlags
	command := &cobra.Command{
		Use: "mcp [flags]", Short: "Serve a VM to an agent by the Model Context Protocol", Long: mcpLong, Example: mcpExample, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.serveMCP(ctx, &f))
		},
	}
	f.register(command)
	command.AddCommand(c.mcpInstallCommand(), c.mcpHookCommand())
	return command
}

func (f *mcpFlags) register(command *cobra.Command) {
	f.command = command
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.name, "vm", "", "use the VM `NAME` (default: one for the current directory)")
	flags.StringVar(&f.http, "http", "", "serve HTTP on `ADDRESS:PORT` of this host's loopback instead of standard input and output; port 0 takes one that is free")
	flags.StringVar(&f.token, "token-file", "", "read the token for --http from a `FILE`")
	f.audit.register(flags)
	f.startFlags.register()
	command.PreRunE = f.prepare
	if err := command.RegisterFlagCompletionFunc("vm", completeNames(0)); err != nil {
		panic(err) // there is such a flag
	}
}

// prepare finds out which VM is meant, and reads the project file for one that is not made yet.
func (f *mcpFlags) prepare(command *cobra.Command, args []string) (err error) {
	if f.name == "" {
		f.name, err = directoryVM()
	}
	if err == nil && !isMade(f.name) {
		_, err = f.readProject(command, args)
	}
	return err
}

// directoryVM is the name of the VM that belongs to the current directory: its last name, and a digest of the whole path.
func directoryVM() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(realPath(dir)))
	base := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(filepath.Base(dir)), "-")
	return "mcp-" + strings.Trim(base[:min(len(base), 24)], "-") + "-" + hex.EncodeToString(sum[:4]), nil
}

const mcpIdle = 30 * time.Minute

// serving returns the configuration of the VM that the flags name, which is refused when it runs otherwise than they say.
func (f *mcpFlags) serving() (*client.Store, client.Config, error) {
	store, err := vms()
	if err != nil {
		return nil, client.Config{}, err
	}
	config, err := f.config(store, f.name)
	if err != nil {
		return nil, client.Config{}, err
	}
	if !f.kept && !f.changed("idle-timeout") {
		config.IdleTimeout = client.Duration(mcpIdle)
	}
	return store, config, runsOtherwise(store, f.name, config)
}

// serveMCP serves until the client has gone.
func (c *cli) serveMCP(ctx context.Context, f *mcpFlags) (err error) {
	store, config, err := f.serving()
	if err != nil {
		return err
	}
	served := mcp.Config{VMs: &mcpVMs{c, store, f.name, config}, Default: f.name, Version: version, Logger: c.log, ChangesHost: changesHost(config)}
	served.Platform = config.Platform
	if status, err := store.Status(ctx, f.name); err == nil { // that of its files, which no flag changes
		served.Platform = cmp.Or(status.Platform, served.Platform)
	}
	for i, m := range config.Mounts {
		if i == 0 {
			served.Dir = m.GuestPath
		}
		how := "; what is changed there is changed for the user"
		if m.ReadOnly {
			how = ", read-only"
		} else if m.CopyOnWrite {
			how = "; the user's own files stay as they are until the user applies the changes"
		}
		served.Instructions += fmt.Sprintf("The user's directory %s is at %s%s.\n", m.HostPath, m.GuestPath, how)
	}
	if served.Dir != "" {
		served.Instructions += "Commands run in " + served.Dir + " by default.\n"
	}
	if f.http == "" && f.audit.path != "" {
		return errors.New("--audit is of requests by HTTP: give --http, too")
	}
	audit, file, err := f.audit.open(c.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	served.Audit = audit
	server := mcp.New(served)
	if f.http != "" {
		err = c.serveHTTP(ctx, server, f)
	} else {
		err = runForParent(ctx, func(ctx context.Context) error { return server.Run(ctx, c.stdin, c.stdout) })
	}
	return errors.Join(err, server.Close())
}

// errParentEnded is why a server on standard input and output ends whose client is gone.
var errParentEnded = errors.New("the client has ended")

// runForParent runs what serves the process that has started this one, until that has ended: another process may hold the other end of standard
// input, which then has no end.
func runForParent(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	done := make(chan struct{})
	watching.Go(func() {
		waitForParent(done)
		cancel(errParentEnded)
	})
	err := run(ctx)
	if context.Cause(ctx) == errParentEnded {
		err = nil
	}
	close(done)
	watching.Wait()
	return err
}

// runsOtherwise returns an error when the flags give the VM another configuration than the one that it runs with: they would have no effect.
// Of what was changed while it ran, as a policy that a tool has narrowed, they may also say what it was started with.
func runsOtherwise(store *client.Store, name string, config client.Config) error {
	if alive, err := store.Alive(name); err != nil || !alive {
		return nil // there is none, or starting it will say what is wrong
	}
	was, err := store.Config(name)
	if err != nil {
		return err
	}
	started := was.AsStarted()
	if sameJSON(config.Network.Policy, started.Network.Policy) {
		config.Network.Policy = was.Network.Policy
	}
	if sameJSON(config.Network.Forwards, started.Network.Forwards) {
		config.Network.Forwards = was.Network.Forwards
	}
	if config.IdleTimeout == started.IdleTimeout {
		config.IdleTimeout = was.IdleTimeout
	}
	if config.HibernateAfter == started.HibernateAfter {
		config.HibernateAfter = was.HibernateAfter
	}
	if config.MaxLifetime == started.MaxLifetime {
		config.MaxLifetime = was.MaxLifetime
	}
	if config.Restart == started.Restart {
		config.Restart = was.Restart
	}
	config.HostPaths, config.Debug = was.HostPaths, was.Debug
	if !sameJSON(was, config) {
		return fmt.Errorf("%s runs already, and otherwise than these flags say: agentvm stop %[1]s first, or leave them out (agentvm inspect %[1]s shows how it runs)", name)
	}
	return nil
}

// sameJSON says whether two values are written alike: lists that are empty and those that are not there are.
func sameJSON(a, b any) bool {
	one, err := json.Marshal(a)
	other, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(one, other)
}

// mcpVMs are the VMs of the store, for the tools.
type mcpVMs struct {
	cli    *cli
	store  *client.Store
	name   string
	config client.Config // of the VM of that name
}

// Open implements mcp.VMs.
func (m *mcpVMs) Open(ctx context.Context, name string, report func(string)) (mcp.VM, error) {
	v, err := m.open(ctx, name, report)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// open connects to a VM, which it starts or makes when need be.
func (m *mcpVMs) open(ctx context.Context, name string, report func(string)) (*client.VM, error) {
	for {
		v, err := m.store.Open(ctx, name)
		if errors.Is(err, client.ErrNotRunning) || errors.Is(err, client.ErrNotFound) && name == m.name {
			v, err = m.start(ctx, name, report)
		}
		if errors.Is(err, client.ErrRunning) {
			continue // another call was faster
		}
		return v, err
	}
}

func (m *mcpVMs) start(ctx context.Context, name string, report func(string)) (*client.VM, error) {
	config := m.config
	if name != m.name {
		var err error
		if config, err = m.store.Config(name); err != nil {
			return nil, err
		}
		if err := m.limit(ctx, &config); err != nil {
			return nil, err
		}
	}
	if err := m.cli.storeImage(ctx, &config); err != nil {
		return nil, err
	}
	v, err := m.store.Start(ctx, name, config, func(_ slog.Level, text string) { report(text) })
	if err != nil {
		return nil, adviseStart(name, config.Image, err)
	}
	return v, nil
}

// limit lets a VM reach no more of the network than the default VM may now: the user may have taken back what that one had when it was forked or saved.
func (m *mcpVMs) limit(ctx context.Context, c *client.Config) error {
	now := m.config
	if v, err := m.store.Open(ctx, m.name); err == nil {
		now, err = v.Config(ctx)
		_ = v.Close()
		if err != nil {
			return err
		}
	} else if !errors.Is(err, client.ErrNotRunning) && !errors.Is(err, client.ErrNotFound) {
		return err
	}
	c.Network = c.Network.Limited(now.Network)
	if c.Secrets = nil; !c.Network.Disabled {
		c.Secrets = now.Secrets
	}
	c.Hostname, c.CaptureFile, c.NetworkLog, c.Metrics = "", "", "", ""
	return nil
}

// Names implements mcp.VMs.
func (m *mcpVMs) Names(context.Context) ([]string, error) { return m.store.Names(), nil }

// Fork implements mcp.VMs.
func (m *mcpVMs) Fork(ctx context.Context, name string, forks []string, keep bool) error {
	if err := checkAbsent(m.store, forks); err != nil {
		return err
	}
	v, err := m.open(ctx, name, func(string) {})
	if err != nil {
		return err
	}
	defer v.Close()
	return v.Fork(ctx, forks, client.ForkOptions{KeepPrograms: keep})
}

// Remove implements mcp.VMs.
func (m *mcpVMs) Remove(ctx context.Context, name string) error {
	if _, err := m.store.Stop(ctx, name, time.Second); err != nil {
		return err
	}
	return m.store.Remove(ctx, name)
}

// Snapshots implements mcp.VMs.
func (m *mcpVMs) Snapshots(context.Context) ([]mcp.Snapshot, error) {
	found, err := savedVMs()
	var list []mcp.Snapshot
	for _, e := range found {
		list = append(list, mcp.Snapshot{Name: e.Name, Created: e.Meta.Created, Comment: printable(e.Meta.Comment), Bytes: e.Allocated})
	}
	return list, err
}

// Snapshot implements mcp.VMs.
func (m *mcpVMs) Snapshot(ctx context.Context, name, snapshot, comment string) error {
	v, err := m.Open(ctx, name, func(string) {})
	if err != nil {
		return err
	}
	defer v.Close()
	return m.cli.createSnapshot(ctx, name, snapshot, comment)
}

// Restore implements mcp.VMs.
func (m *mcpVMs) Restore(ctx context.Context, snapshot, name string) error {
	return restoreAs(ctx, m.store, snapshot, name, func(c *client.Config) error { return m.limit(ctx, c) })
}

// RemoveSnapshot implements mcp.VMs.
func (m *mcpVMs) RemoveSnapshot(ctx context.Context, snapshot string) error {
	return removeSaved(ctx, snapshot)
}
