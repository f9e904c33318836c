package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
)

const forkLong = `Makes VMs that continue from where a running one is, with its memory and its files. The original runs on undisturbed. Each fork is a
computer of its own: it has its own random numbers, network address, host name and generation (/run/agentvm/generation), and its
connections are cut. It is started as the VM was, except for ports of the host and addresses of metrics, which get free ones, and files of
--net-log and --pcap. Later it starts from its own disk, like every VM.

Programs are killed in the forks, unless --keep-programs lets each copy run on. Programs that were started from a mount end in any case: a
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
		Use: "fork [flags] NAME NEW...", Short: "Fork a running VM", Long: forkLong, Example: forkExample,
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
	flags.BoolVar(&f.keep, "keep-programs", false, "let programs run on in the forks; their output is lost")
	flags.BoolVarP(&f.silent, "quiet", "q", false, "do not report progress on standard error")
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

func (c *cli) fork(ctx context.Context, name string, list []string, f *forkFlags) error {
	store, err := vms()
	if err != nil {
		return err
	}
	if err := checkAbsent(store, list); err != nil {
		return err
	}
	began := time.Now()
	return withVM(ctx, name, func(v *client.VM) error {
		if f.keep && !f.silent {
			if config, err := v.Config(ctx); err == nil && len(config.Mounts) > 0 {
				fmt.Fprintln(c.stderr, "agentvm: programs that were started from a mount, or have files of one open, end in the forks: a fork mounts the directories anew")
			}
		}
		progress := c.newProgress()
		defer progress.close()
		if !f.silent {
			progress.waiting("forking " + name)
		}
		return adviseFull(name, v.Fork(ctx, list, client.ForkOptions{KeepPrograms: f.keep, Started: func(fork string) {
			if progress.close(); !f.silent {
				fmt.Fprintf(c.stderr, "agentvm: %s: runs, after %.1f s\n", fork, time.Since(began).Seconds())
			}
		}}))
	})
}

// checkAbsent returns an error when one of the names is taken.
func checkAbsent(store *client.Store, list []string) error {
	for _, name := range list {
		if err := store.Exists(name); !errors.Is(err, client.ErrNotFound) {
			if err == nil {
				err = fmt.Errorf("%s: %w: take another name, or remove it (agentvm rm %s)", name, client.ErrExists, name)
			}
			return err
		}
	}
	return nil
}
