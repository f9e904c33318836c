package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/images"
	"agentvm/internal/host/platform"
	"agentvm/vm"
)

const runLong = `Runs an image's own command, or another, in a fresh VM, as docker run does in a container: with the image's ENTRYPOINT, CMD,
ENV, USER and WORKDIR. agentvm pulls the image when it is not in the store; see agentvm image --help for the names of images.

The arguments after IMAGE replace the image's CMD. The exit code is the command's. A fresh VM ends with its command. With --name the VM
keeps its files on a disk, as those of agentvm start do; with -d it continues in the background, with the command as a job, until
agentvm stop.`

const runExample = `  agentvm run python:3.13-alpine
  agentvm run -it --rm -v .:/src -v pip:/root/.cache/pip -w /src python:3.13-alpine python build.py
  agentvm run --entrypoint sh oci-archive:./image.tar -c "id"
  agentvm run -d --name web -p 8080:80 nginx:alpine`

// runSidecar is the name of the sidecar that run -d --restart makes of the command.
const runSidecar = "run"

// runFlags are the flags of run: those of start and what docker run has.
type runFlags struct {
	startFlags
	name, dir, user, entrypoint string
	detach, remove, publishAll  bool
	interactive, terminal       bool
	timeout                     time.Duration
}

func (c *cli) runCommand() *cobra.Command {
	var f runFlags
	command := &cobra.Command{
		Use: "run [flags] IMAGE [COMMAND [ARGS...]]", Short: "Run an image as docker run does", Long: runLong, Example: runExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New("run: no image given, as in agentvm run python:3.13-alpine")
			}
			return nil
		},
		ValidArgsFunction: completeRun,
	}
	f.command = command
	f.vmFlags.register(command)
	flags := command.Flags()
	flags.SetInterspersed(false)
	_ = flags.MarkHidden("image") // it is the first argument
	flags.StringVar(&f.name, "name", "", "keep the VM's files under this `NAME`, as agentvm start does")
	flags.BoolVarP(&f.detach, "detach", "d", false, "leave the VM running in the background and print its name")
	flags.String("restart", "", "with --detach: start the command again when it has ended, and the VM: `POLICY` always, on-failure or no; the VM's later starts start it, too; agentvm logs --sidecar run prints its output")
	_ = command.RegisterFlagCompletionFunc("restart", restartPolicies)
	flags.BoolVar(&f.remove, "rm", false, "with --name: remove the VM when the command has ended; a VM without a name is always removed")
	flags.BoolVarP(&f.publishAll, "publish-all", "P", false, "forward a free port of this host's loopback to each TCP port that the image exposes")
	flags.StringVar(&f.entrypoint, "entrypoint", "", "run this `PROGRAM` instead of the image's ENTRYPOINT and CMD")
	flags.String("hostname", "", "the guest's host name")
	flags.StringVarP(&f.dir, "workdir", "w", "", "working directory in the VM, made when it is missing (default the image's, or /)")
	flags.StringVarP(&f.user, "user", "u", "", "user in the VM: name, uid, name:group or uid:gid (default the image's, or root)")
	durationFlag(flags, &f.timeout, "timeout", "", 0, "end the command after this time, such as 90s or 5m, and exit with 124")
	flags.BoolVarP(&f.interactive, "interactive", "i", true, "pass standard input on; -i=false gives the command none")
	flags.BoolVarP(&f.terminal, "tty", "t", false, "give the command a terminal; -t=false never does (default: as standard input and output are)")
	recordFlag(flags, &f.record)
	return runs(command, func(ctx context.Context, args []string) error {
		if f.record != "" && f.detach {
			return errors.New("--record is for a command that this process waits for: leave --detach out")
		}
		if f.detach {
			f.interactive = f.interactive && flags.Changed("interactive")
		} else if !flags.Changed("tty") {
			f.terminal = isTerminal(c.stdin) && isTerminal(c.stdout)
		}
		if f.text("restart") != "" && (!f.detach || f.interactive || f.terminal || f.timeout > 0) {
			return errors.New("--restart is for a command in the background: it goes with --detach, and not with --interactive, --tty or --timeout")
		}
		if flags.Changed("image") {
			return errors.New("run: the image is the first argument, not a flag")
		}
		return c.runImage(ctx, &f, args[0], args[1:])
	})
}

func (c *cli) runImage(ctx context.Context, f *runFlags, ref string, args []string) error {
	image, err := c.chosenImage(ctx, &f.vmFlags, ref)
	if err != nil {
		return err
	}
	command := vm.Command{Args: imageCommand(image, f.entrypoint, args), User: f.user, Timeout: f.timeout}
	if len(command.Args) == 0 {
		return fmt.Errorf("image %s names no command: give one, as in agentvm run %s /bin/sh", image.Name, ref)
	}
	if f.publishAll {
		if err := f.publishExposed(image); err != nil {
			return err
		}
	}
	if f.interactive && !isNull(c.stdin) {
		command.Stdin = c.stdin
	}
	if f.name == "" && f.detach {
		f.name = newVMName(image.Name)
	}
	if f.name != "" {
		return c.runImageNamed(ctx, f, command)
	}
	command.Stdout, command.Stderr = io.Writer(c.stdout), io.Writer(c.stderr)
	change := func(config *vm.Config) {
		config.WorkingDir = f.dir
		c.confineBeforeRun(&f.vmFlags, config)
	}
	result, denied, err := c.runTarget(ctx, c.fresh(&f.vmFlags, change), command, f.terminal, execInterruptWindow)
	c.printDenials(&f.vmFlags, denied)
	if err != nil {
		return adviseDir(f.dir, err)
	}
	return status(result)
}

// runImageNamed starts a named VM and runs the command in it, as a job or to its end.
func (c *cli) runImageNamed(ctx context.Context, f *runFlags, command vm.Command) error {
	store, err := vms()
	if err != nil {
		return err
	}
	config, err := f.config(store, f.name)
	if err != nil {
		return err
	}
	config.Debug = config.Debug || c.debug
	if f.flags.Changed("workdir") {
		config.WorkingDir = f.dir
	}
	if f.text("restart") != "" {
		policy := cmp.Or(config.Restart, client.RestartNever)
		config.Sidecars = append(slices.DeleteFunc(slices.Clone(config.Sidecars), func(s client.Sidecar) bool { return s.Name == runSidecar }),
			client.Sidecar{Name: runSidecar, Args: command.Args, User: command.User, Restart: policy})
	}
	if err := c.boot(ctx, store, f.name, config, true); err != nil {
		return err
	}
	if f.detach && f.text("restart") != "" { // it runs as a sidecar
		fmt.Fprintln(c.stdout, f.name)
		return nil
	}
	if f.detach {
		image := f.flags.Lookup("image").Value.String()
		if _, err := c.detach(ctx, f.name, command, f.terminal, f.interactive, image); err != nil {
			return err
		}
		fmt.Fprintln(c.stdout, f.name)
		return nil
	}
	command.Stdout, command.Stderr = io.Writer(c.stdout), io.Writer(c.stderr)
	result, denied, err := c.runTarget(ctx, c.named(f.name, &f.vmFlags), command, f.terminal, execInterruptWindow)
	c.printDenials(&f.vmFlags, denied)
	err = adviseDir(f.dir, err)
	ended := context.WithoutCancel(ctx)
	if stopErr := c.stopVM(ended, f.name, graceTime, false); f.remove && stopErr == nil {
		err = errors.Join(err, store.Remove(ended, f.name))
	} else {
		err = errors.Join(err, stopErr)
	}
	if err != nil {
		return err
	}
	return status(result)
}

// resolveImage finds an image, for a platform unless it is empty, pulling it when it is missing.
func (c *cli) resolveImage(ctx context.Context, ref string, of platform.Architecture) (*images.Image, error) {
	if vm.IsModule(ref) {
		return nil, fmt.Errorf("image %s: %w", ref, vm.ErrModule)
	}
	progress := c.newProgress()
	defer progress.close()
	store, err := c.store(progress.report)
	if err != nil {
		return nil, err
	}
	image, err := store.For(of).Resolve(ctx, ref)
	return image, adviseImage(ref, err)
}

// storeImage brings an image of the host's files into the store, for a daemon: elsewhere and later it might not find them.
func (c *cli) storeImage(ctx context.Context, config *client.Config) error {
	if !images.NamesFile(config.Image) {
		return nil
	}
	of, err := platform.ParseOptional(config.Platform)
	if err != nil {
		return err
	}
	image, err := c.resolveImage(ctx, config.Image, of)
	if err == nil {
		config.Image, config.Platform = image.Name, image.Architecture.Platform()
	}
	return err
}

// chosenImage brings an image into the store and has the flags name it, with its platform: the name may stand for several.
func (c *cli) chosenImage(ctx context.Context, f *vmFlags, ref string) (*images.Image, error) {
	of, err := platform.ParseOptional(f.flags.Lookup("platform").Value.String())
	if err != nil {
		return nil, err
	}
	image, err := c.resolveImage(ctx, ref, of)
	if err != nil {
		return nil, err
	}
	return image, errors.Join(f.flags.Set("image", image.Name), f.flags.Set("platform", image.Architecture.Platform()))
}

// imageOfInput brings the image that is called - into the store: only this package has the standard input.
func (c *cli) imageOfInput(ctx context.Context, f *vmFlags) error {
	if f.flags.Lookup("image").Value.String() != "-" {
		return nil
	}
	_, err := c.chosenImage(ctx, f, "-")
	return err
}

// imageCommand combines what the image runs with what the user gave, as docker run does: arguments replace CMD, an entry point both. alpine and
// busybox run a shell, as Docker's images of these names do.
func imageCommand(image *images.Image, entrypoint string, args []string) []string {
	if entrypoint != "" {
		return append([]string{entrypoint}, args...)
	}
	if len(args) == 0 {
		args = image.Cmd
	}
	if len(args)+len(image.Entrypoint) == 0 && len(image.Layers) == 0 { // a root file system, which has no configuration to name a command
		return []string{"/bin/sh"}
	}
	return slices.Concat(image.Entrypoint, args)
}

// publishExposed forwards a port that the system chooses to each that the image exposes.
func (f *runFlags) publishExposed(image *images.Image) error {
	for _, exposed := range image.ExposedPorts {
		port, protocol, _ := strings.Cut(exposed, "/")
		if protocol != "" && protocol != "tcp" {
			continue
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("image %s exposes the port %.40q: forward what you need with -p", image.Name, exposed)
		}
		if err := f.command.Flags().Set("publish", fmt.Sprintf("0:%d", n)); err != nil {
			return err
		}
	}
	return nil
}

// newVMName makes a name of an image's and some random letters.
func newVMName(image string) string {
	base := image[strings.LastIndexByte(image, '/')+1:]
	base, _, _ = strings.Cut(strings.ReplaceAll(base, "@", ":"), ":")
	return strings.Trim(base[:min(len(base), 40)], "._-") + "-" + strings.ToLower(rand.Text()[:6])
}
