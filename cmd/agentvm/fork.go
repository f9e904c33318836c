package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"agentvm/internal/daemon"
	"agentvm/internal/daemonrpc"
	"agentvm/nat"
)

const forkLong = `Makes VMs that continue from where a running one is, with its memory and its files. That one runs on undisturbed. Each fork is another
computer: it has its own random numbers, network address, host name and generation (/run/agentvm/generation), and connections are cut in
it. It is started as the VM was, except for ports of the host and addresses of metrics, which get free ones, and files of
--net-log and --pcap. Later it starts from its own disk, like every VM.

Programs are killed in the forks, unless --keep-programs has each copy run on. Those that were started from a mount end nevertheless: a
fork mounts the directories anew.`

const forkExample = `  agentvm fork dev try1
  agentvm fork dev a b c
  agentvm fork dev worker --count 20          # worker-1 to worker-20
  agentvm fork --keep-programs server copy`

type forkFlags struct {
	count        int
	keep, silent bool
}

func (c *cli) forkCommand() *cobra.Command {
	var f forkFlags
	command := &cobra.Command{
		Use: "fork [flags] NAME NEW...", Short: "Make VMs that continue from where one is", Long: forkLong, Example: forkExample,
		Args: counted(2, 0), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := forkNames(args[1:], cmd.Flags().Changed("count"), f.count)
			if err != nil {
				return err
			}
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.fork(ctx, args[0], list, &f))
		},
	}
	flags := command.Flags()
	flags.IntVar(&f.count, "count", 1, "make `N` forks, called NEW-1 to NEW-N")
	flags.BoolVar(&f.keep, "keep-programs", false, "have programs run on in the forks; what they print is lost")
	flags.BoolVarP(&f.silent, "quiet", "q", false, "do not say on standard error how it goes")
	return command
}

// maxForks bounds one command.
const maxForks = 1000

// forkNames returns the names of the forks, with numbers when --count was given.
func forkNames(list []string, counted bool, count int) ([]string, error) {
	if counted && (len(list) != 1 || count < 1 || count > maxForks) {
		return nil, fmt.Errorf("--count %d: want 1 to %d, and one NEW, which gets numbers", count, maxForks)
	}
	if counted {
		base := list[0]
		list = nil
		for i := range count {
			list = append(list, fmt.Sprintf("%s-%d", base, i+1))
		}
	}
	seen := map[string]bool{}
	for _, name := range list {
		if err := checkNew(name, runtime.GOOS); err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, fmt.Errorf("two forks cannot both be called %s", name)
		}
		seen[name] = true
	}
	return list, nil
}

// fork has the VM written into a file from which all forks continue. The file is removed afterwards: the forks have it mapped.
func (c *cli) fork(ctx context.Context, name string, list []string, f *forkFlags) error {
	store, err := vms()
	if err != nil {
		return err
	}
	if err := checkAbsent(store, list); err != nil {
		return err
	}
	client, err := connect(ctx, name)
	if err != nil {
		return err
	}
	defer client.Close()
	config, err := forkConfig(ctx, client)
	if err != nil {
		return adviseEnded(name, err)
	}
	saved, err := snapshots()
	if err != nil {
		return err
	}
	file, err := saved.NewFork()
	if err != nil {
		return err
	}
	defer file.Close()
	if f.keep && !f.silent && len(config.Mounts) > 0 {
		fmt.Fprintln(c.stderr, "agentvm: programs that were started from a mount, or have files of one open, end in the forks: a fork mounts the directories anew")
	}
	began := time.Now()
	if _, err := client.Snapshot(ctx, daemonrpc.SnapshotRequest{Path: file.Path(), Layered: true}); err != nil {
		return saveError(name, err)
	}
	return c.startForks(ctx, store, list, config, daemon.Restoration{Snapshot: file.Path(), KeepPrograms: f.keep}, func(fork string) {
		if !f.silent {
			fmt.Fprintf(c.stderr, "agentvm: %s: runs, after %.1f s\n", fork, time.Since(began).Seconds())
		}
	})
}

// checkAbsent returns an error when one of the names is taken.
func checkAbsent(store daemon.Store, list []string) error {
	for _, name := range list {
		if _, err := store.LogPath(name); !errors.Is(err, daemon.ErrNotFound) {
			if err == nil {
				err = fmt.Errorf("%s: %w: take another name, or remove it (agentvm rm %s)", name, daemon.ErrExists, name)
			}
			return err
		}
	}
	return nil
}

// starters is how many forks start at the same time.
const starters = 4

func (c *cli) startForks(ctx context.Context, store daemon.Store, list []string, config daemon.Config, r daemon.Restoration, runs func(string)) error {
	errs := make([]error, len(list))
	slots := make(chan struct{}, starters)
	var starting sync.WaitGroup
	for i, name := range list {
		slots <- struct{}{}
		starting.Go(func() {
			defer func() { <-slots }()
			client, err := store.Restore(ctx, name, config, r, nil)
			if err == nil {
				runs(name)
				err = client.Close()
			}
			errs[i] = err
		})
	}
	starting.Wait()
	return errors.Join(errs...)
}

// forkConfig returns what a VM runs with, without what only one VM can have.
func forkConfig(ctx context.Context, client *daemon.Client) (config daemon.Config, err error) {
	if config, err = liveConfig(ctx, client); err != nil {
		return config, err
	}
	return config, unshare(&config)
}

// unshare removes from a configuration what only one VM can have.
func unshare(config *daemon.Config) error {
	config.Hostname, config.Network.Capture, config.Network.Log = "", "", ""
	var forwards []string
	for _, text := range config.Network.Forwards {
		forward, err := nat.ParseForward(text)
		if err != nil {
			return err
		}
		forward.Listen = netip.AddrPortFrom(forward.Listen.Addr(), 0)
		forwards = append(forwards, forward.String())
	}
	config.Network.Forwards = forwards
	if at, err := netip.ParseAddrPort(config.Metrics); err == nil {
		config.Metrics = netip.AddrPortFrom(at.Addr(), 0).String()
	}
	return nil
}

// liveConfig returns what a VM runs with, with the policy that is in force now.
func liveConfig(ctx context.Context, client *daemon.Client) (config daemon.Config, err error) {
	info, err := client.Info(ctx)
	if err == nil {
		err = json.Unmarshal(info.Config, &config)
	}
	if err != nil || config.Network.Disabled {
		return config, err
	}
	config.Network.Policy, err = client.Policy(ctx)
	return config, adviseEnded(client.Name(), err)
}
