package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/client"
	"agentvm/images"
	"agentvm/internal/host/platform"
	"agentvm/internal/settings"
)

const startLong = `Starts a VM in the background: in a process of its own, without this terminal, until agentvm stop. Commands run in it
with agentvm exec -n NAME, from any terminal.

Its files are kept on a disk when it stops and starts, until agentvm rm. So are its settings: a later start
without flags is like the last one, and each flag changes only its own setting. The image cannot change.

Returns when the VM runs. Meanwhile it reports on standard error what it is doing.`

const startExample = `  agentvm start dev
  agentvm start dev --memory 1G -m .:/src -p 8080:80
  agentvm start job --idle-timeout 10m --max-lifetime 2h --disk-size 2G
  agentvm start locked --net allowlist --allow pypi.org`

// startFlags are the flags of start.
type startFlags struct {
	vmFlags
	diskImage    images.Key // what the files of a VM that was started before belong to
	kept, silent bool
	wait         bool

	command *cobra.Command
}

func (c *cli) startCommand() *cobra.Command {
	var f startFlags
	command := &cobra.Command{
		Use: "start [flags] NAME", Short: "Start a named VM in the background", Long: startLong, Example: startExample,
		Args: counted(1, 1), ValidArgsFunction: completeStopped(1),
		RunE: func(_ *cobra.Command, args []string) error { return c.startVM(&f, args[0]) },
	}
	f.command = command
	f.register()
	return command
}

func (f *startFlags) register() {
	flags := f.command.Flags()
	f.registerVM(f.command)
	f.networkFlags.registerKept(flags)
	f.registerLife(flags)
	registerSettings(flags, func(s settings.Setting) bool { return s.Part == settings.OfDaemon && s.Fresh })
	flags.BoolVar(&f.wait, "wait", true, "return when the VM runs; --wait=false: return as soon as its daemon boots it")
}

// registerLife registers what a named VM can change at each start.
func (f *startFlags) registerLife(flags *pflag.FlagSet) {
	registerSettings(flags, func(s settings.Setting) bool { return s.Part == settings.OfDaemon && !s.Fresh })
	_ = f.command.RegisterFlagCompletionFunc("restart", restartPolicies)
	flags.BoolVarP(&f.silent, "quiet", "q", false, "do not report the start's progress on standard error")
}

func restartPolicies(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"always", "on-failure", "no"}, cobra.ShellCompDirectiveNoFileComp
}

// startVM starts a VM and waits until it runs. The first signal stops it again.
func (c *cli) startVM(f *startFlags, name string) error {
	store, err := vms()
	if err != nil {
		return err
	}
	config, err := f.config(store, name)
	if err != nil {
		return err
	}
	config.Debug = config.Debug || c.debug
	f.changeCold(&config, store, name)
	s := newSession(shellInterruptWindow)
	ctx := s.begin(context.Background())
	defer s.end()
	if err := c.storeImage(ctx, &config); err != nil {
		return s.explain(err)
	}
	if !f.wait {
		return s.explain(c.launch(ctx, store, name, config, f.silent))
	}
	return s.explain(c.boot(ctx, store, name, config, f.silent))
}

// changeCold has --cold give up the memory of a VM that is hibernated. It is for this start alone then, and kept as any other flag else.
func (f *startFlags) changeCold(config *client.Config, store *client.Store, name string) {
	if !f.changed("cold") || !config.ColdBoot {
		return
	}
	config.Cold = true
	if was, err := store.Config(name); err == nil && store.Asleep(name) {
		config.ColdBoot = was.ColdBoot
	}
}

// boot starts a VM and reports on standard error how that goes.
func (c *cli) boot(ctx context.Context, store *client.Store, name string, config client.Config, silent bool) error {
	report := func(_ slog.Level, text string) {
		if !silent {
			fmt.Fprintf(c.stderr, "agentvm: %s: %s\n", name, printable(text))
		}
	}
	began := time.Now()
	v, err := store.Start(ctx, name, config, report)
	if err != nil {
		return adviseStart(name, config.Image, err)
	}
	report(slog.LevelInfo, fmt.Sprintf("runs, after %.1f s; agentvm exec -n %s runs a command in it", time.Since(began).Seconds(), name))
	return v.Close()
}

// launch leaves the boot to the client.
func (c *cli) launch(ctx context.Context, store *client.Store, name string, config client.Config, silent bool) error {
	v, err := store.Launch(ctx, name, config)
	if err != nil {
		return adviseStart(name, config.Image, err)
	}
	if !silent {
		fmt.Fprintf(c.stderr, "agentvm: %s: boots; agentvm ps says when it runs, agentvm exec -n %s waits for it\n", name, name)
	}
	return v.Close()
}

// adviseStart adds to an error what to do.
func adviseStart(name, image string, err error) error {
	if errors.Is(err, client.ErrRunning) {
		return fmt.Errorf("%w (agentvm exec -n %s runs a command in it, agentvm stop %s ends it)", err, name, name)
	}
	return adviseImage(image, err)
}

// adviseImage adds to the error about an unknown image which may have been meant.
func adviseImage(image string, err error) error {
	if !errors.Is(err, images.ErrNotFound) {
		return err
	}
	hint := ""
	if near := nearest(image, knownImages()); near != "" {
		hint = ": did you mean " + near + "?"
	}
	return fmt.Errorf("%w%s (agentvm image ls shows what there is)", err, hint)
}

// config returns what the VM was last started with, if it was started before, changed as the flags say.
func (f *startFlags) config(store *client.Store, name string) (client.Config, error) {
	if err := client.CheckName(name); err != nil {
		return client.Config{}, err
	}
	config, err := store.Config(name)
	f.kept = err == nil
	if f.kept {
		f.diskImage, err = store.DiskImage(name)
	}
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		return config, err
	}
	if !f.kept {
		if err := checkNew(name, runtime.GOOS); err != nil {
			return config, err
		}
	}
	if dir, err := images.DefaultDir(); err != nil {
		return config, err
	} else {
		config.StoreDir = dir
	}
	if err := f.change(&config, name); err != nil {
		return config, err
	}
	return config, config.Validate()
}

// change changes what the flags name. It finds mistakes before there is a daemon.
func (f *startFlags) change(config *client.Config, name string) error {
	if f.kept && f.changed("image") && config.DiskSize >= 0 {
		image, _ := f.flags.GetString("image")
		was := cmp.Or(f.diskImage.Name, config.Image, images.DefaultName())
		if image = cmp.Or(image, images.DefaultName()); image != was && !images.SameImage(image, was) {
			return fmt.Errorf("--image %s: the files of %s belong to image %s: give the VM another name, or remove it first (agentvm rm %s)", image, name, was, name)
		}
	}
	if f.kept && f.changed("platform") && config.DiskSize >= 0 && f.diskImage.Name != "" {
		text, _ := f.flags.GetString("platform")
		asked, err := platform.Parse(text)
		if was := f.diskImage.Architecture; err == nil && asked != was {
			err = fmt.Errorf("--platform %s: the files of %s are for %s: give the VM another name, or remove it first (agentvm rm %s)", text, name, was.Platform(), name)
		}
		if err != nil {
			return err
		}
	}
	changed := func(flag string) bool { return f.changed(flag) || flag == "memory" && !f.kept }
	return errors.Join(f.vmFlags.change(config.Settings(), changed), f.changeFiles(config), f.changeProject(config))
}

// changed says whether a flag is given.
func (f *startFlags) changed(flag string) bool { return f.command.Flags().Changed(flag) }

// changeFiles makes the host's paths absolute, because the daemon has another working directory. The user names them now, so that they mean
// what is there now.
func (f *startFlags) changeFiles(config *client.Config) (err error) {
	if f.changed("mount") {
		for i, m := range config.Mounts {
			if config.Mounts[i].HostPath, err = filepath.Abs(m.HostPath); err != nil {
				return fmt.Errorf("--mount %s: %w", m, err)
			}
			config.Forget(config.Mounts[i].HostPath)
		}
	}
	if f.changed("socket") {
		for _, socket := range config.UnixSockets {
			config.Forget(socket.Host)
		}
	}
	if _, err := f.certificate(); err != nil {
		return err
	}
	for flag, path := range map[string]string{"ca-cert": config.CAFile, "pcap": config.CaptureFile, "net-log": config.NetworkLog} {
		if f.changed(flag) {
			config.Forget(path)
		}
	}
	return nil
}

// sidecars converts those of a project file, which has checked them.
func sidecars(file *settings.File) (list []client.Sidecar, err error) {
	for _, s := range file.Sidecars {
		sidecar := client.Sidecar{Name: s.Name, Args: s.Command, Env: s.Env, User: s.User, Restart: client.RestartPolicy(s.Restart)}
		if s.Backoff != "" {
			if err := sidecar.Backoff.UnmarshalText([]byte(s.Backoff)); err != nil {
				return nil, fmt.Errorf("sidecar %s: %w", s.Name, err)
			}
		}
		list = append(list, sidecar)
	}
	return list, nil
}

// changeProject sets what only a project file can have.
func (f *startFlags) changeProject(config *client.Config) (err error) {
	if f.project == nil {
		return nil
	}
	config.Sidecars, err = sidecars(f.project)
	seconds, _ := strconv.Atoi(f.project.Value("preview.max-expires-in-seconds")) // checked; none: 0, the default
	config.PreviewMaxLifetime = client.Duration(seconds) * client.Duration(time.Second)
	return err
}
