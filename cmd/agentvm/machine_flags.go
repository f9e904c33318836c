package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/mount"
	"agentvm/nat"
	"agentvm/project"
	"agentvm/vm"
)

// machineFlags are the flags of commands that start a machine.
type machineFlags struct {
	networkFlags
	trust  trustFlags
	image  string
	memory string
	mounts []string
	env    []string
	cold   bool
	remove bool

	project *project.File // nil: none was read
}

func (f *machineFlags) register(command *cobra.Command) {
	f.registerMachine(command)
	f.networkFlags.register(command)
	command.Flags().BoolVar(&f.remove, "rm", true, "throw the machine away afterwards (always so: machines without a name leave nothing behind)")
}

// registerMachine registers the flags of the machine itself.
func (f *machineFlags) registerMachine(command *cobra.Command) {
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.image, "image", "", "image to boot: a name of agentvm image ls, alpine, alpine:VERSION or busybox (default alpine)")
	flags.StringVar(&f.memory, "memory", "512M", "memory of the machine, as 768M or 2G")
	flags.BoolVar(&f.cold, "cold", false, "boot the machine, also when it could go on from a saved one that has just booted")
	f.registerShared(command)
	f.registerProject(command)
}

// registerShared registers the flags that a machine can have which goes on from a snapshot, too.
func (f *machineFlags) registerShared(command *cobra.Command) {
	flags := command.Flags()
	flags.StringArrayVarP(&f.mounts, "mount", "m", nil, "show a directory of this computer to the machine: host[:guest][:ro] (guest default "+mount.DefaultGuestPath+"; may be repeated)")
	flags.Var(maskFlag{&f.mounts}, "mask", "hide a `PATH` of the mount before it from the machine, as .env or .git/hooks (may be repeated)")
	f.trust.register(command)
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set KEY=VALUE in the machine, or pass KEY on from here (may be repeated)")
}

// machine is a VM and what watches its network.
type machine struct {
	*vm.VM
	watch *networkWatch
	cli   *cli
}

// Close switches the VM off and closes its files.
func (m *machine) Close() {
	_ = m.VM.Close()
	m.cli.closeWatch(m.watch)
}

func (c *cli) closeWatch(w *networkWatch) {
	if err := w.close(); err != nil {
		fmt.Fprintln(c.stderr, "agentvm: the record of the network is not complete:", err)
	}
}

// startWith boots a machine as the flags say, with a last change to the configuration.
func (c *cli) startWith(ctx context.Context, f *machineFlags, change func(*vm.Config)) (*machine, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	watch, err := watchNetwork(&f.networkFlags, &config.Network)
	if err != nil {
		return nil, err
	}
	config.Logger = c.log
	if c.facets.console {
		config.Console = c.stderr
	}
	progress := newProgress(c.stderr)
	defer progress.close()
	config.Progress = progress.report
	change(&config)
	v, err := vm.Start(ctx, config)
	if errors.Is(err, images.ErrNotFound) {
		err = fmt.Errorf("%w (agentvm image ls shows what there is)", err)
	}
	if err != nil {
		c.closeWatch(watch)
		return nil, err
	}
	c.tellForwards(config.Network.Forwards, v.Forwards())
	return &machine{v, watch, c}, nil
}

// tellForwards says where a forward listens whose port was left to the system.
func (c *cli) tellForwards(asked []nat.Forward, at []net.Addr) {
	for i, f := range asked {
		if f.Listen.Port() == 0 {
			fmt.Fprintf(c.stderr, "agentvm: %s leads to port %d of the machine\n", at[i], f.GuestPort)
		}
	}
}

func (f *machineFlags) config() (vm.Config, error) {
	config := vm.Config{Image: f.image, ColdBoot: f.cold}
	if !f.remove {
		return config, errors.New("--rm=false: a machine without a name keeps nothing: agentvm start NAME makes one that does")
	}
	var err error
	if config.Network, err = f.networkFlags.config(); err != nil {
		return config, err
	}
	if err = f.access.apply(&config); err != nil {
		return config, err
	}
	if config.Memory, err = parseMemory(f.memory); err != nil {
		return config, err
	}
	if config.Env, err = environment(f.env); err != nil {
		return config, err
	}
	for _, text := range f.mounts {
		spec, err := mount.Parse(text)
		if err != nil {
			return config, err
		}
		config.Mounts = append(config.Mounts, spec)
	}
	return config, f.trust.apply(&config)
}

// environment completes KEY by this process's value; a KEY that is not set here is left out.
func environment(list []string) ([]string, error) {
	var env []string
	for _, kv := range list {
		key, _, found := strings.Cut(kv, "=")
		if key == "" {
			return nil, fmt.Errorf("--env %q: want KEY=VALUE or KEY", kv)
		}
		if found {
			env = append(env, kv)
		} else if value, set := os.LookupEnv(key); set {
			env = append(env, key+"="+value)
		}
	}
	return env, nil
}

// parseMemory reads a size in bytes; a number alone means MiB.
func parseMemory(text string) (uint64, error) {
	n, err := parseSize(text, 20)
	if err != nil {
		return 0, fmt.Errorf("--memory %q: want a size as 768M or 2G", text)
	}
	return n, nil
}

var errSize = errors.New("not a size")

// parseSize reads a number with a unit K, M or G, which are powers of 1024. A number alone is shifted left by bare.
func parseSize(text string, bare int) (uint64, error) {
	digits := strings.TrimRight(strings.ToUpper(text), "KMGIB")
	unit := strings.ToUpper(text)[len(digits):]
	n, err := strconv.ParseUint(digits, 10, 64)
	shift, known := map[string]int{
		"": bare, "K": 10, "KB": 10, "KIB": 10, "M": 20, "MB": 20, "MIB": 20, "G": 30, "GB": 30, "GIB": 30,
	}[unit]
	if err != nil || !known || n > math.MaxUint64>>shift {
		return 0, errSize
	}
	return n << shift, nil
}
