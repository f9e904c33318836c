package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/host/platform"
	"agentvm/internal/imagebuild"
	"agentvm/internal/settings"
	"agentvm/vm"
)

const buildLong = `Makes an image from a Dockerfile, as docker build does, without Docker and without root. Each RUN runs in a fresh VM;
--net, --allow and --deny say what its programs can reach, as for agentvm exec. Unchanged steps come from the cache.

CONTEXT is the directory that COPY copies from. With - agentvm reads the Dockerfile from standard input, and there is no context. An image
is for the platform of the one that its FROM names, which is linux/riscv64 if that has both, unless --platform says otherwise. With SOURCE_DATE_EPOCH in the environment, no file is newer than that, and the same input makes the same image.

Prints the image's name. The exit code is 1 when a RUN or another step fails, 125 when the build could not begin.`

const buildExample = `  agentvm build -t app .
  agentvm build -t app --build-arg VERSION=3 --target test -f docker/Dockerfile .
  agentvm run app`

// maxDockerfile bounds a Dockerfile and a secret, in bytes.
const maxDockerfile = 1 << 20

// buildFlags are the flags of build.
type buildFlags struct {
	policyFlags
	name, file, target, memory string
	platform                   platform.Architecture
	args, secrets              []string
	noCache, noNetwork, quiet  bool
	progress                   string
}

func (c *cli) buildCommand() *cobra.Command {
	var f buildFlags
	command := &cobra.Command{
		Use: "build [flags] CONTEXT", Short: "Make an image from a Dockerfile", Long: buildLong, Example: buildExample, Args: counted(1, 1),
	}
	flags := command.Flags()
	flags.StringVarP(&f.name, "tag", "t", "", "the image's `NAME[:TAG]` in the store")
	flags.StringVarP(&f.file, "file", "f", "", "the Dockerfile (default CONTEXT/Dockerfile)")
	flags.StringVar(&f.target, "target", "", "the `STAGE` to build (default the last)")
	flags.StringArrayVar(&f.args, "build-arg", nil, "the value of an ARG, as `NAME=VALUE`, or NAME for that of the environment (may be repeated)")
	flags.StringArrayVar(&f.secrets, "secret", nil, "a file for RUN --mount=type=secret, as `id=NAME,src=FILE`, or a variable, as id=NAME,env=VARIABLE (may be repeated)")
	platformFlag(flags, &f.platform, "default the first of these that FROM's image has; also of each FROM that names none")
	flags.StringVar(&f.memory, "memory", "", "memory of the VMs in which RUN runs, a `SIZE` such as 512M or 2G (default 1G)")
	flags.StringVar(&f.progress, "progress", "plain", "`plain`: a line for each step, and what programs print")
	flags.BoolVar(&f.noCache, "no-cache", false, "do every step again")
	flags.BoolVar(&f.noNetwork, "no-network", false, "give RUN no network")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print only the image's name, and errors")
	f.policyFlags.register(flags)
	return runs(command, func(ctx context.Context, args []string) error {
		s := newSession(shellInterruptWindow)
		ctx = s.begin(ctx)
		defer s.end()
		return s.explain(c.build(ctx, &f, args[0]))
	})
}

func (c *cli) build(ctx context.Context, f *buildFlags, where string) error {
	o, err := f.options(where, c.stdin)
	if err != nil {
		return err
	}
	if o.Context != nil {
		defer o.Context.Close()
	}
	if o.Store, err = c.store(nil); err != nil {
		return err
	}
	o.VM.StoreDir, o.VM.Logger = o.Store.Dir(), c.log
	o.Resolve = c.resolveImage
	o.LookUp = func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	if o.Output = c.stderr; f.quiet {
		o.Output = io.Discard
	}
	image, err := imagebuild.Build(ctx, o)
	var step *imagebuild.StepError
	if errors.As(err, &step) && ctx.Err() == nil {
		fmt.Fprintln(c.stderr, "agentvm:", err)
		return exitStatus(1)
	}
	if err != nil {
		return err
	}
	if f.name != "" {
		fmt.Fprintln(c.stdout, image.Name)
	}
	return nil
}

// options turns the flags into those of a build.
func (f *buildFlags) options(where string, stdin io.Reader) (o imagebuild.Options, err error) {
	if f.progress != "plain" && f.progress != "auto" {
		return o, fmt.Errorf("--progress %s: want plain", f.progress)
	}
	o = imagebuild.Options{Name: f.name, Target: f.target, Platform: f.platform, NoCache: f.noCache, Args: map[string]string{}, Secrets: map[string][]byte{}}
	if f.name != "" {
		if err := images.CheckName(f.name); err != nil {
			return o, err
		}
	}
	for _, arg := range f.args {
		name, value, found := strings.Cut(arg, "=")
		if name == "" {
			return o, fmt.Errorf("--build-arg %q: want NAME=VALUE", arg)
		}
		if !found {
			if value, found = os.LookupEnv(name); !found {
				continue
			}
		}
		o.Args[name] = value
	}
	for _, text := range f.secrets {
		if err := addSecret(o.Secrets, text); err != nil {
			return o, err
		}
	}
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds < 0 {
			return o, fmt.Errorf("SOURCE_DATE_EPOCH=%.40q: want seconds since 1970", text)
		}
		o.Epoch = time.Unix(seconds, 0).UTC()
	}
	o.VM = vm.Config{Memory: 1 << 30, Network: vm.Network{Disabled: f.noNetwork}}
	if f.memory != "" {
		if o.VM.Memory, err = settings.ParseSize(f.memory, 20); err != nil {
			return o, fmt.Errorf("--memory %q: want a size, as 512M or 2G", f.memory)
		}
	}
	if err := f.apply(&o.VM.Network); err != nil {
		return o, err
	}
	if where == "-" {
		o.File = "standard input"
		o.Dockerfile, err = io.ReadAll(io.LimitReader(stdin, maxDockerfile+1))
	} else {
		if o.ContextDir, err = filepath.Abs(where); err != nil {
			return o, err
		}
		if f.file == "" {
			f.file = filepath.Join(where, "Dockerfile")
		}
		if o.Context, err = openContext(o.ContextDir); err != nil {
			return o, fmt.Errorf("the build's context: %w", err)
		}
		o.File = f.file
		o.Dockerfile, err = readHostFile(f.file)
	}
	if err == nil && len(o.Dockerfile) > maxDockerfile {
		err = fmt.Errorf("%s: a Dockerfile has at most %d KiB", o.File, maxDockerfile>>10)
	}
	if err == nil && len(bytes.TrimSpace(o.Dockerfile)) == 0 {
		err = fmt.Errorf("%s is empty: it needs a FROM", o.File)
	}
	return o, err
}

// openContext opens the directory of a build, where a VM that could change it may have put links.
func openContext(dir string) (*os.Root, error) {
	guard, err := hostGuard()
	if err != nil {
		return nil, err
	}
	place, err := guard.Open(dir, hostpath.Identity{})
	if err != nil {
		return nil, err
	}
	defer place.Close()
	return place.Root()
}

func addSecret(to map[string][]byte, text string) error {
	var id, src, env string
	for field := range strings.SplitSeq(text, ",") {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "id":
			id = value
		case "src", "source":
			src = value
		case "env":
			env = value
		case "type":
			if value != "file" && value != "env" {
				return fmt.Errorf("--secret %q: a secret is a file or a variable", text)
			}
		default:
			return fmt.Errorf("--secret %q: want id=NAME,src=FILE or id=NAME,env=VARIABLE", text)
		}
	}
	if id == "" || (src == "") == (env == "") {
		return fmt.Errorf("--secret %q: want id=NAME,src=FILE or id=NAME,env=VARIABLE", text)
	}
	if env != "" {
		value, ok := os.LookupEnv(env)
		if !ok {
			return fmt.Errorf("--secret %q: the environment has no %s", text, env)
		}
		to[id] = []byte(value)
		return nil
	}
	data, err := readHostFile(src)
	if err == nil && len(data) > maxDockerfile {
		err = fmt.Errorf("a secret has at most %d KiB", maxDockerfile>>10)
	}
	to[id] = data
	return err
}
