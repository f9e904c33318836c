package main

import (
	"context"
	"fmt"
	"net"
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
	mounts []string
	volume []string // names of those among the mounts
	used   []*volume.Use
	env    []string

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
	registerSettings(flags, func(s settings.Setting) bool { return s.Part == settings.OfVM && s.Fresh })
	f.registerShared(command)
	f.registerProject(command)
}

// registerShared registers the flags that are also for VMs that continue from a snapshot.
func (f *vmFlags) registerShared(command *cobra.Command) {
	flags := command.Flags()
	f.flags = flags
	flags.StringArrayVarP(&f.mounts, "mount", "m", nil, "show a directory of the host to the VM: host[:guest][:ro|:cow] (guest default "+mount.DefaultGuestPath+"; cow: what the VM changes is its own, see agentvm diff; may be repeated)")
	flags.VarP(volumeFlag{f}, "volume", "v", "show a volume, or a directory as --mount does, to the VM: `NAME:/PATH[:ro]` or ./host:/PATH; see agentvm volume (may be repeated)")
	flags.Var(mountPathFlag{&f.mounts, "a mask", addMask}, "mask", "hide a `PATH` of the preceding mount from the VM, such as .env or .git/hooks (may be repeated)")
	flags.Var(mountPathFlag{&f.mounts, "an unprotected path", addUnprotected}, "unprotected", "let the VM change a `PATH` of the preceding mount that programs of the host execute or obey by themselves, such as .git or .envrc; . is all (may be repeated)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set KEY=VALUE in the VM, or pass on the value that KEY has here (may be repeated)")
	registerSettings(flags, func(s settings.Setting) bool { return s.Part == settings.OfVM && !s.Fresh })
	_ = command.MarkFlagFilename("ca-cert", "pem", "crt")
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
	if err = f.change(settings.Config{Config: &c}, always); err == nil {
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

// change is networkFlags.change for all flags. It does not read the certificate.
func (f *vmFlags) change(c settings.Config, changed func(flag string) bool) error {
	if changed("mount") {
		if err := f.useVolumes(); err != nil {
			return err
		}
	}
	return f.networkFlags.change(c, changed)
}

// certificate reads the file of --ca-cert.
func (f *vmFlags) certificate() ([]byte, error) {
	path := f.text("ca-cert")
	if path == "" {
		return nil, nil
	}
	text, err := readHostFile(path)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert: %w", err)
	}
	return text, nil
}

// registerSettings registers the flags of some settings, except for those that the command has already.
func registerSettings(flags *pflag.FlagSet, which func(settings.Setting) bool) {
	for _, s := range settings.All() {
		switch {
		case !which(s) || s.Usage == "" || flags.Lookup(s.Flag) != nil:
		case s.Kind == settings.Switch:
			flags.Bool(s.Flag, false, s.Usage)
		case s.Kind == settings.Number:
			flags.Int(s.Flag, 0, s.Usage)
		case s.Kind == settings.Duration:
			durationFlag(flags, new(time.Duration), s.Flag, s.Short, 0, s.Usage)
		case s.Kind == settings.Pairs:
			flags.StringToString(s.Flag, nil, s.Usage)
		case s.Kind.IsList():
			flags.StringArrayP(s.Flag, s.Short, nil, s.Usage)
		default:
			flags.String(s.Flag, s.Default, s.Usage)
		}
	}
}

// always is for the flags of a VM that has no configuration yet: each counts, also one that is not given.
func always(string) bool { return true }

// changeSettings sets in c what is named by each registered flag of the table of settings for which changed holds.
func changeSettings(c settings.Config, flags *pflag.FlagSet, changed func(flag string) bool) error {
	for _, s := range settings.All() {
		flag := flags.Lookup(s.Flag)
		if flag == nil || !s.Sets() || !changed(s.Flag) {
			continue
		}
		var err error
		if pairs, no := flags.GetStringToString(s.Flag); no == nil {
			err = s.Put(c, pairs)
		} else {
			err = s.Set(c, flagTexts(flag))
		}
		if err != nil {
			return err
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

// duration is a flag's length of time, as settings.ParseDuration reads it.
type duration time.Duration

func durationFlag(flags *pflag.FlagSet, value *time.Duration, name, shorthand string, standard time.Duration, usage string) {
	*value = standard
	flags.VarP((*duration)(value), name, shorthand, usage)
}

func (d *duration) Set(text string) error {
	value, err := settings.ParseDuration(text)
	if err == nil {
		*d = duration(value)
	}
	return err
}

// String is "0" without a value, which help texts then leave out.
func (d *duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

func (d *duration) Type() string { return "duration" }
