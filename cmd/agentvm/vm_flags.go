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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/images"
	"agentvm/internal/mount"
	"agentvm/internal/spec"
	"agentvm/nat"
	"agentvm/vm"
)

// vmFlags are the flags of commands that start a VM.
type vmFlags struct {
	networkFlags
	trust  trustFlags
	image  string
	memory string
	mounts []string
	env    []string
	cold   bool

	changes changesFlags // of exec

	project *spec.File // nil: none was read
}

func (f *vmFlags) register(command *cobra.Command) {
	f.registerVM(command)
	f.networkFlags.register(command)
}

// registerVM registers the flags of the VM itself.
func (f *vmFlags) registerVM(command *cobra.Command) {
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.image, "image", "", "image to boot: a name of agentvm image ls, alpine, alpine:VERSION or busybox (default alpine)")
	flags.StringVar(&f.memory, "memory", "512M", "memory of the VM, as 768M or 2G")
	flags.BoolVar(&f.cold, "cold", false, "boot the VM, even when it could start from a saved one that has just booted")
	f.registerShared(command)
	f.registerProject(command)
}

// registerShared registers the flags that are also for VMs that continue from a snapshot.
func (f *vmFlags) registerShared(command *cobra.Command) {
	flags := command.Flags()
	flags.StringArrayVarP(&f.mounts, "mount", "m", nil, "show a directory of the host to the VM: host[:guest][:ro|:cow] (guest default "+mount.DefaultGuestPath+"; cow: what the VM changes is its own, see agentvm diff; may be repeated)")
	flags.Var(maskFlag{&f.mounts}, "mask", "hide a `PATH` of the mount before it from the VM, as .env or .git/hooks (may be repeated)")
	flags.Var(unprotectedFlag{&f.mounts}, "unprotected", "let the VM change a `PATH` of the mount before it that programs of the host execute or obey by themselves, as .git or .envrc; . is all (may be repeated)")
	f.trust.register(command)
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set KEY=VALUE in the VM, or pass KEY on from here (may be repeated)")
}

// watchedVM is a VM and what watches its network.
type watchedVM struct {
	*vm.VM
	watch *networkWatch
	cli   *cli
}

// Close switches the VM off and closes its files.
func (m *watchedVM) Close() {
	_ = m.VM.Close()
	m.cli.closeWatch(m.watch)
}

func (c *cli) closeWatch(w *networkWatch) {
	if err := w.close(); err != nil {
		fmt.Fprintln(c.stderr, "agentvm: the record of the network is not complete:", err)
	}
}

// startWith boots a VM as the flags say, with a last change to the configuration.
func (c *cli) startWith(ctx context.Context, f *vmFlags, change func(*vm.Config)) (*watchedVM, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	if err := f.changes.check(config.Mounts); err != nil {
		return nil, err
	}
	watch, err := watchNetwork(&f.networkFlags, &config)
	if err != nil {
		return nil, err
	}
	config.Logger = c.log
	if c.facets.console {
		config.Console = c.stderr
	}
	progress := &progress{out: c.stderr}
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
	forwards, err := v.Forwards(ctx)
	if err != nil {
		return nil, err
	}
	c.printForwards(config.Network.Forwards, forwards)
	return &watchedVM{v, watch, c}, nil
}

// printForwards says where a forward listens whose port was left to the system.
func (c *cli) printForwards(asked []nat.Forward, at []net.Addr) {
	for i, f := range asked {
		if f.Listen.Port() == 0 {
			fmt.Fprintf(c.stderr, "agentvm: %s leads to port %d of the VM\n", at[i], f.GuestPort)
		}
	}
}

func (f *vmFlags) config() (vm.Config, error) {
	config := vm.Config{Image: f.image, ColdBoot: f.cold}
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
	if err != nil || n == 0 {
		return 0, fmt.Errorf("--memory %q: want a size as 768M or 2G", text)
	}
	return n, nil
}

// duration is a flag's length of time, as 90s or 5m. A number alone means seconds, as docker and kubectl have it.
type duration time.Duration

func durationFlag(flags *pflag.FlagSet, value *time.Duration, name, shorthand string, standard time.Duration, usage string) {
	*value = standard
	flags.VarP((*duration)(value), name, shorthand, usage)
}

func (d *duration) Set(text string) error {
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		*d = duration(time.Duration(seconds) * time.Second)
		return nil
	}
	value, err := time.ParseDuration(text)
	if err != nil || value < 0 {
		return errors.New("want a positive time, as 90s or 5m")
	}
	*d = duration(value)
	return nil
}

// String is "0" without a value, which help texts then leave out.
func (d *duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

func (d *duration) Type() string { return "duration" }

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
