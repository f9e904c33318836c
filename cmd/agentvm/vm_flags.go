package main

import (
	"cmp"
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
	image              string
	memory, hostMemory string
	mounts             []string
	env                []string
	cold               bool
	ca                 string
	switches           map[string]*bool // by their flags
	sockets            []string

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
	flags.StringVar(&f.hostMemory, "host-memory", "", "memory of the host that the VM may take besides its own, for connections, unread output and open files of mounts, as 64M or 1G (default 256M)")
	flags.StringArrayVarP(&f.mounts, "mount", "m", nil, "show a directory of the host to the VM: host[:guest][:ro|:cow] (guest default "+mount.DefaultGuestPath+"; cow: what the VM changes is its own, see agentvm diff; may be repeated)")
	flags.Var(maskFlag{&f.mounts}, "mask", "hide a `PATH` of the mount before it from the VM, as .env or .git/hooks (may be repeated)")
	flags.Var(unprotectedFlag{&f.mounts}, "unprotected", "let the VM change a `PATH` of the mount before it that programs of the host execute or obey by themselves, as .git or .envrc; . is all (may be repeated)")
	flags.StringVar(&f.ca, "ca-cert", "", "have the guest trust the certificates of this PEM `FILE` as well")
	f.switches = make(map[string]*bool)
	for _, s := range spec.Switches() {
		f.switches[s.Flag] = flags.Bool(s.Flag, false, s.Usage)
	}
	flags.StringArrayVar(&f.sockets, "socket", nil, "let the VM connect to a Unix socket of the host: `HOST[:GUEST][:MODE]`, paths and permissions in octal (guest default: the same path, mode 0666; may be repeated)")
	_ = command.MarkFlagFilename("ca-cert", "pem", "crt")
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

// config returns the configuration of a VM of this process.
func (f *vmFlags) config() (c vm.Config, err error) {
	if err = f.change(&c, always); err == nil {
		c.CACertificate, err = f.certificate()
	}
	return c, err
}

// change sets in c what is named by each flag for which changed holds, and leaves the rest as it is. It does not read the certificate.
func (f *vmFlags) change(c *vm.Config, changed func(flag string) bool) (err error) {
	if changed("image") {
		c.Image = f.image
	}
	if changed("cold") {
		c.ColdBoot = f.cold
	}
	if changed("memory") {
		if c.Memory, err = parseMemory("memory", f.memory); err != nil {
			return err
		}
	}
	if changed("host-memory") && f.hostMemory != "" {
		size, err := parseMemory("host-memory", f.hostMemory)
		if err != nil || size > math.MaxInt64 {
			return cmp.Or(err, fmt.Errorf("--host-memory %q: that is more than any host has", f.hostMemory))
		}
		c.HostMemory = int64(size)
	}
	if changed("env") {
		if c.Env, err = environment(f.env); err != nil {
			return err
		}
	}
	if changed("mount") {
		if c.Mounts, err = parseAll(f.mounts, mount.Parse); err != nil {
			return err
		}
	}
	for _, s := range spec.Switches() {
		if changed(s.Flag) {
			*s.In(c) = *f.switches[s.Flag]
		}
	}
	if changed("socket") {
		if c.UnixSockets, err = parseAll(f.sockets, vm.ParseUnixSocket); err != nil {
			return err
		}
	}
	return errors.Join(f.networkFlags.change(&c.Network, changed), f.access.change(&c.Access, changed))
}

// certificate reads the file of --ca-cert.
func (f *vmFlags) certificate() ([]byte, error) {
	if f.ca == "" {
		return nil, nil
	}
	text, err := readHostFile(f.ca)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert: %w", err)
	}
	return text, nil
}

func parseAll[T any](texts []string, parse func(string) (T, error)) (list []T, err error) {
	for _, text := range texts {
		one, err := parse(text)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
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

// parseMemory reads a flag's size in bytes; a number alone means MiB.
func parseMemory(flag, text string) (uint64, error) {
	n, err := parseSize(text, 20)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("--%s %q: want a size as 768M or 2G", flag, text)
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
