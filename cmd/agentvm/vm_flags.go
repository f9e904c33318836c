package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/internal/settings"
	"agentvm/internal/share/mount"
	"agentvm/internal/storage/volume"
	"agentvm/nat"
	"agentvm/vm"
)

// vmFlags are the flags of commands that start a VM.
type vmFlags struct {
	networkFlags
	flags  *pflag.FlagSet // those of the table of settings are read from here
	mounts []string
	volume []string // names of those among the mounts
	used   []*volume.Use
	env    []string
	ca     string

	changes changesFlags // of exec
	binds   []string     // of exec
	record  string       // of exec and run: a file, "": none

	project *settings.File // nil: none was read
}

func (f *vmFlags) register(command *cobra.Command) {
	f.registerVM(command)
	f.networkFlags.register(command)
}

// registerVM registers the flags of the VM itself.
func (f *vmFlags) registerVM(command *cobra.Command) {
	flags := command.Flags()
	flags.SortFlags = false
	registerSettings(flags, "image", "memory", "cold")
	f.registerShared(command)
	f.registerProject(command)
}

// registerShared registers the flags that are also for VMs that continue from a snapshot.
func (f *vmFlags) registerShared(command *cobra.Command) {
	flags := command.Flags()
	f.flags = flags
	registerSettings(flags, "host-memory")
	flags.StringArrayVarP(&f.mounts, "mount", "m", nil, "show a directory of the host to the VM: host[:guest][:ro|:cow] (guest default "+mount.DefaultGuestPath+"; cow: what the VM changes is its own, see agentvm diff; may be repeated)")
	flags.VarP(volumeFlag{f}, "volume", "v", "show a volume, or a directory as --mount does, to the VM: `NAME:/PATH[:ro]` or ./host:/PATH; see agentvm volume (may be repeated)")
	flags.Var(mountPathFlag{&f.mounts, "a mask", addMask}, "mask", "hide a `PATH` of the mount before it from the VM, as .env or .git/hooks (may be repeated)")
	flags.Var(mountPathFlag{&f.mounts, "an unprotected path", addUnprotected}, "unprotected", "let the VM change a `PATH` of the mount before it that programs of the host execute or obey by themselves, as .git or .envrc; . is all (may be repeated)")
	flags.StringVar(&f.ca, "ca-cert", "", "have the guest trust the certificates of this PEM `FILE` as well")
	for _, s := range settings.Switches() {
		registerSettings(flags, s.Key)
	}
	registerSettings(flags, "sockets", "secrets")
	_ = command.MarkFlagFilename("ca-cert", "pem", "crt")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set KEY=VALUE in the VM, or pass KEY on from here (may be repeated)")
}

// watchedVM is a VM and what watches its network.
type watchedVM struct {
	*vm.VM
	watch    *networkWatch
	recorded func() error // ends the recording
	cli      *cli
}

// Close switches the VM off and closes its files.
func (m *watchedVM) Close() {
	_ = m.VM.Close()
	m.cli.closeWatch(m.watch)
	if err := m.recorded(); err != nil {
		fmt.Fprintln(m.cli.stderr, "agentvm: the recording is not complete:", err)
	}
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
	if err := f.changes.remember(ctx, config.Mounts); err != nil {
		return nil, err
	}
	watch, err := watchNetwork(&f.networkFlags, &config)
	if err != nil {
		return nil, err
	}
	recorded, err := recordTo(f.record, &config)
	if err != nil {
		c.closeWatch(watch)
		return nil, err
	}
	config.Logger = c.log
	if c.facets.console {
		config.Console = c.stderr
	}
	progress := c.newProgress()
	defer progress.close()
	config.Progress = progress.report
	change(&config)
	v, err := vm.Start(ctx, config)
	if err != nil {
		err = adviseImage(config.Image, err)
		c.closeWatch(watch)
		_ = recorded()
		return nil, err
	}
	forwards, err := v.Forwards(ctx)
	if err != nil {
		return nil, err
	}
	c.printForwards(config.Network.Forwards, forwards)
	return &watchedVM{v, watch, recorded, c}, nil
}

// printForwards says where a forward listens whose port was left to the system.
func (c *cli) printForwards(asked []nat.Forward, at []net.Addr) {
	for i, f := range asked {
		if f.Listen.Port() == 0 {
			fmt.Fprintf(c.stderr, "agentvm: %s leads to port %s of the VM\n", at[i], f.Target())
		}
	}
}

// config returns the configuration of a VM of this process.
func (f *vmFlags) config() (c vm.Config, err error) {
	if err = f.change(&c, always); err == nil {
		c.CACertificate, err = f.certificate()
	}
	for _, text := range f.binds {
		command, err := vm.ParseHostCommand(text)
		if err != nil {
			return c, fmt.Errorf("--bind: %w", err)
		}
		c.HostCommands = append(c.HostCommands, command)
	}
	return c, err
}

// change sets in c what is named by each flag for which changed holds, and leaves the rest as it is. It does not read the certificate.
func (f *vmFlags) change(c *vm.Config, changed func(flag string) bool) (err error) {
	if err = changeSettings(c, f.flags, changed); err != nil {
		return err
	}
	if changed("env") {
		if c.Env, err = environment(f.env); err != nil {
			return err
		}
	}
	if changed("mount") {
		if err := f.useVolumes(); err != nil {
			return err
		}
		c.Mounts = nil
		for _, text := range f.mounts {
			one, err := mount.Parse(text)
			if err != nil {
				return err
			}
			c.Mounts = append(c.Mounts, one)
		}
	}
	return f.networkFlags.change(&c.Network, changed)
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

// registerSettings registers the flags of settings, by their keys.
func registerSettings(flags *pflag.FlagSet, keys ...string) {
	for _, s := range settings.All() {
		switch {
		case !slices.Contains(keys, s.Key):
		case s.Kind == settings.Switch:
			flags.Bool(s.Flag, false, s.Usage)
		case s.Kind.IsList():
			flags.StringArray(s.Flag, nil, s.Usage)
		default:
			flags.String(s.Flag, s.Default, s.Usage)
		}
	}
}

// always is for the flags of a VM that has no configuration yet: each counts, also one that is not given.
func always(string) bool { return true }

// changeSettings sets in c what is named by each registered flag of the table of settings for which changed holds.
func changeSettings(c *vm.Config, flags *pflag.FlagSet, changed func(flag string) bool) error {
	for _, s := range settings.All() {
		if flag := flags.Lookup(s.Flag); flag != nil && s.InConfig() && changed(s.Flag) {
			if err := s.Set(c, flagTexts(flag)); err != nil {
				return err
			}
		}
	}
	return c.Access.Check()
}

// flagTexts is what a flag was given, or its default.
func flagTexts(flag *pflag.Flag) []string {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{flag.Value.String()}
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
