package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/api/e2b"
	"agentvm/internal/api/e2b/wire"
	"agentvm/vm"
)

const e2bLong = `Serves VMs by E2B's protocols, over HTTP on an address of this host's loopback, so that programs written for E2B's SDK run here: each sandbox
is a VM of its own, made with these flags. It ends when its time-out passes, when a client kills it, or when this command ends.

Programs need three variables, which are printed on standard error:

  E2B_API_URL      this server
  E2B_SANDBOX_URL  the same
  E2B_API_KEY      the key of --key-file, or the one that is printed

The files of a sandbox end with it, except in snapshots, which agentvm snapshot ls lists. Clients can narrow the network
policy of these flags, but not widen it. A server at PORT in a sandbox is reached at http://PORT-ID.localhost:PORT-OF-THIS-SERVER. The guide's page on E2B says which methods of the SDK work.`

const e2bExample = `  agentvm e2b
  agentvm e2b --listen 127.0.0.1:3000 --key-file key --memory 512M --allow pypi.org`

// e2bFlags are the flags of e2b.
type e2bFlags struct {
	startFlags
	listen, key, user string
	max               int
	audit             auditFlag
}

func (c *cli) e2bCommand() *cobra.Command {
	var f e2bFlags
	command := &cobra.Command{
		Use: "e2b [flags]", Short: "Serve VMs to programs written for E2B", Long: e2bLong, Example: e2bExample, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.serveE2B(ctx, &f))
		},
	}
	f.register(command)
	return command
}

func (f *e2bFlags) register(command *cobra.Command) {
	f.command = command
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.listen, "listen", "127.0.0.1:3000", "serve on `ADDRESS:PORT` of this host's loopback; port 0 takes one that is free")
	flags.StringVar(&f.key, "key-file", "", "read the API key from a `FILE`")
	flags.StringVar(&f.user, "user", "root", "the guest's `USER` who runs commands and owns files where the client names none")
	flags.IntVar(&f.max, "max-sandboxes", 16, "the maximum number of sandboxes at the same time")
	f.audit.register(flags)
	f.registerVM(command)
	f.networkFlags.registerKept(flags)
}

// serveE2B serves until the first signal, and removes the sandboxes.
func (c *cli) serveE2B(ctx context.Context, f *e2bFlags) (err error) {
	if f.max < 1 {
		return fmt.Errorf("--max-sandboxes %d: want 1 or more", f.max)
	}
	key, err := serverKey("--key-file", f.key)
	if err != nil {
		return err
	}
	if f.key == "" {
		key = "e2b_" + strings.ToLower(fmt.Sprintf("%x", key)) // the form that older SDKs want
	}
	store, err := vms()
	if err != nil {
		return err
	}
	config, err := f.config(store, "e2b")
	if err != nil {
		return err
	}
	if f.kept {
		return errors.New("there is a VM called e2b, whose configuration these flags would change: agentvm rm e2b first")
	}
	if err := c.storeImage(ctx, &config); err != nil {
		return err
	}
	config.DiskSize, config.MaxLifetime = -1, client.Duration(25*time.Hour) // an hour after the longest life: what a killed server has left ends, too
	policy := config.Network.Policy
	if config.Network.Disabled {
		policy = egress.Policy{Mode: egress.None}
	}
	audit, file, err := f.audit.open(c.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	server, err := e2b.New(e2b.Config{
		Audit: audit,
		VMs:   &e2bVMs{store, config}, Snapshots: &e2bSnapshots{c, store, config}, Key: key, User: f.user, Policy: policy, Max: f.max, CPUs: config.CPUs, Memory: cmp.Or(int64(config.Memory), vm.DefaultMemory), Logger: c.log,
	})
	if err != nil {
		return err
	}
	defer server.Close()
	return server.Serve(ctx, f.listen, func(url string) {
		fmt.Fprintf(c.stderr, "agentvm: serves E2B's SDK:\n  export E2B_API_URL=%s E2B_SANDBOX_URL=%[1]s\n", url)
		if f.key == "" {
			fmt.Fprintf(c.stderr, "  export E2B_API_KEY=%s\n", key)
		}
	})
}

// e2bVMs makes the VMs of sandboxes.
type e2bVMs struct {
	store  *client.Store
	config client.Config
}

// Create implements e2b.VMs.
func (m *e2bVMs) Create(ctx context.Context, name string, env []string, policy egress.Policy, _ []string) (e2b.VM, error) {
	config := m.config
	config.Env = append(append([]string(nil), config.Env...), env...)
	config.Network.Policy = policy
	v, err := m.store.Create(ctx, name, config, nil)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Open implements e2b.VMs.
func (m *e2bVMs) Open(ctx context.Context, name string) (e2b.VM, error) {
	v, err := m.store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Remove implements e2b.VMs.
func (m *e2bVMs) Remove(ctx context.Context, name string) error {
	return stopAndRemove(ctx, m.store, name)
}

// e2bPrefix is before the names of clients' snapshots, which have no other ones.
const e2bPrefix = "e2b-"

// e2bSnapshots keeps sandboxes among the snapshots of the store.
type e2bSnapshots struct {
	cli    *cli
	store  *client.Store
	config client.Config
}

// List implements e2b.Snapshots.
func (m *e2bSnapshots) List(context.Context) (list []wire.Snapshot, err error) {
	found, err := savedVMs()
	for _, e := range found {
		name, own := strings.CutPrefix(e.Name, e2bPrefix)
		if !own {
			continue
		}
		one := wire.Snapshot{Name: name, Created: e.Meta.Created}
		if kept, err := readKept(e.Path); err == nil {
			one.Sandbox = kept.Name
		}
		list = append(list, one)
	}
	return list, err
}

// Create implements e2b.Snapshots.
func (m *e2bSnapshots) Create(ctx context.Context, vm, snapshot string) error {
	return m.cli.createSnapshot(ctx, vm, e2bPrefix+snapshot, "")
}

// Restore implements e2b.Snapshots.
func (m *e2bSnapshots) Restore(ctx context.Context, snapshot, vm string, env []string, policy egress.Policy) (e2b.VM, error) {
	err := restoreAs(ctx, m.store, e2bPrefix+snapshot, vm, func(c *client.Config) error {
		most := m.config.Network
		most.Policy = policy
		c.Hostname, c.Network, c.MaxLifetime = "", c.Network.Limited(most), m.config.MaxLifetime
		c.Env = append(append([]string(nil), m.config.Env...), env...)
		c.Secrets = m.config.Secrets
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m.store.Open(ctx, vm)
}

// Remove implements e2b.Snapshots.
func (m *e2bSnapshots) Remove(ctx context.Context, snapshot string) error {
	return removeSaved(ctx, e2bPrefix+snapshot)
}
