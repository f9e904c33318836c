package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/client"
	"agentvm/images"
	"agentvm/internal/daemon"
	"agentvm/vm"
)

// isolatedName is the guest's host name, the same as without --isolate.
const isolatedName = "agentvm"

// runIsolated does what run does, with the VM in a process of its own: a daemon that no other command finds, whose VM keeps nothing and which
// ends with this process.
func (c *cli) runIsolated(ctx context.Context, f *execFlags, command vm.Command) (*vm.Result, denials, error) {
	s := newSession(execInterruptWindow)
	ctx = s.begin(ctx)
	defer s.end()
	m, err := c.startIsolated(ctx, f)
	if err != nil {
		return nil, denials{}, s.explain(err)
	}
	defer m.close()
	v := client.Attach(m.client)
	result, err := c.runIn(ctx, c.startIn(v), command, f.terminal, s)
	err = adviseEnded(m.name, err)
	var status exitStatus
	if err != nil && !errors.As(err, &status) {
		err = m.explain(err)
	}
	if err != nil {
		return result, denials{}, err
	}
	return result, deniedSince(ctx, v, time.Time{}), nil
}

// isolated is a VM in a process of its own.
type isolated struct {
	store  daemon.Store
	owner  *daemon.Owner
	client *daemon.Client
	name   string
}

func (c *cli) startIsolated(ctx context.Context, f *execFlags) (*isolated, error) {
	dir, err := images.DefaultDir()
	if err != nil {
		return nil, err
	}
	config := daemon.Config{StoreDir: dir, DiskSize: -1, Hostname: isolatedName, Debug: c.debug}
	flags := startFlags{vmFlags: f.vmFlags, command: f.command}
	m := &isolated{
		store: daemon.Store{Dir: filepath.Join(dir, "isolated"), Version: version},
		name:  "exec-" + strings.ToLower(rand.Text()),
	}
	if err := flags.change(&config, m.name); err != nil {
		return nil, err
	}
	m.sweep(ctx)
	if m.owner, err = daemon.NewOwner(); err != nil {
		return nil, err
	}
	m.store.Owner = m.owner
	progress := func(_ slog.Level, text string) {
		if text != "booting" && !f.quiet {
			fmt.Fprintln(c.stderr, "agentvm:", printable(text))
		}
	}
	if m.client, err = m.store.Start(ctx, m.name, config, progress); err != nil {
		err = errors.Join(adviseStart(m.name, err), m.owner.Close())
		m.remove()
		return nil, err
	}
	m.printForwards(ctx, c, f.publish)
	return m, nil
}

// printForwards says where a forward listens whose port was left to the system.
func (m *isolated) printForwards(ctx context.Context, c *cli, asked []string) {
	info, err := m.client.Info(ctx)
	if err != nil || len(info.Ports) != len(asked) {
		return
	}
	for i, text := range asked {
		at, port, found := strings.Cut(info.Ports[i], " -> ")
		if found && (strings.HasPrefix(text, "0:") || strings.Contains(text, ":0:")) {
			port, _, _ = strings.Cut(port, "/")
			fmt.Fprintf(c.stderr, "agentvm: %s leads to port %s of the VM\n", at, port)
		}
	}
}

// isolatedTime is how long agentvm waits for the end of the process.
const isolatedTime = 5 * time.Second

// explain says how the process has ended, when that is what the error is about.
func (m *isolated) explain(err error) error {
	select {
	case <-m.owner.Ended():
	case <-time.After(isolatedTime):
		return err
	}
	status, statusErr := m.store.Status(context.Background(), m.name)
	switch {
	case statusErr == nil && status.Error != "":
		return fmt.Errorf("the VM's process has ended (%s): %s", m.owner.How(), status.Error)
	default:
		return fmt.Errorf("the VM's process has ended (%s): %w", m.owner.How(), err)
	}
}

// close ends the process and removes what it has left.
func (m *isolated) close() {
	ctx, cancel := context.WithTimeout(context.Background(), isolatedTime)
	defer cancel()
	_ = m.client.Stop(ctx, 0)
	_ = m.client.Close()
	_ = m.owner.Close()
	select {
	case <-m.owner.Ended():
	case <-ctx.Done():
	}
	m.remove()
}

func (m *isolated) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), isolatedTime)
	defer cancel()
	_ = m.store.Remove(ctx, m.name)
}

// strayTime is the age from which what an agentvm has left is taken for that of a killed one: a younger one may be starting.
const strayTime = time.Minute

// sweep removes what killed processes have left.
func (m *isolated) sweep(ctx context.Context) {
	entries, err := os.ReadDir(m.store.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < strayTime {
			continue
		}
		if alive, err := m.store.Alive(e.Name()); err == nil && !alive {
			_ = m.store.Remove(ctx, e.Name())
		}
	}
}
