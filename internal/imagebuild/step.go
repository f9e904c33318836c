package imagebuild

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"agentvm/images"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

// do carries out one instruction.
func (s *state) do(ctx context.Context, command instructions.Command) error {
	if expands, ok := command.(instructions.SupportsSingleWordExpansion); ok {
		env := s.env()
		if err := expands.Expand(func(word string) (string, error) { return s.b.expand(word, env) }); err != nil {
			return err
		}
	}
	c := &s.config.Config
	switch in := command.(type) {
	case *instructions.RunCommand:
		return s.doRun(ctx, in)
	case *instructions.CopyCommand:
		return s.doCopy(ctx, in)
	case *instructions.AddCommand:
		return s.doAdd(ctx, in)
	case *instructions.WorkdirCommand:
		return s.doWorkdir(ctx, in)
	case *instructions.ArgCommand:
		return s.doArg(in)
	case *instructions.EnvCommand:
		for _, kv := range in.Env {
			c.Env = slices.DeleteFunc(slices.Clone(c.Env), func(old string) bool { return strings.HasPrefix(old, kv.Key+"=") })
			c.Env = append(c.Env, kv.Key+"="+kv.Value)
		}
	case *instructions.LabelCommand:
		c.Labels = maps.Clone(c.Labels)
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		for _, kv := range in.Labels {
			c.Labels[kv.Key] = kv.Value
		}
	case *instructions.MaintainerCommand:
		s.config.Author = in.Maintainer
	case *instructions.ExposeCommand:
		if err := s.expose(in.Ports); err != nil {
			return err
		}
	case *instructions.VolumeCommand:
		c.Volumes = addKeys(c.Volumes, in.Volumes)
	case *instructions.UserCommand:
		c.User = in.User
	case *instructions.CmdCommand:
		c.Cmd = s.commandLine(in.ShellDependantCmdLine)
	case *instructions.EntrypointCommand:
		c.Entrypoint = s.commandLine(in.ShellDependantCmdLine)
		c.Cmd = nil // that of the base does not belong to it
	case *instructions.ShellCommand:
		s.shell, c.Shell = in.Shell, in.Shell
	case *instructions.StopSignalCommand:
		c.StopSignal = in.Signal
	case *instructions.HealthCheckCommand:
		if in.Health.StartInterval != 0 {
			fmt.Fprintln(s.b.Output, "HEALTHCHECK --start-interval has no effect: --interval counts from the beginning")
		}
		c.Healthcheck = &v1.HealthConfig{
			Test: in.Health.Test, Interval: in.Health.Interval, Timeout: in.Health.Timeout, StartPeriod: in.Health.StartPeriod, Retries: in.Health.Retries,
		}
	case *instructions.OnbuildCommand:
		c.OnBuild = append(slices.Clone(c.OnBuild), in.Expression)
	default:
		return fmt.Errorf("agentvm build does not know %s", command.Name())
	}
	text := fmt.Sprint(command)
	s.say(text, "")
	s.record(text, nil)
	return nil
}

func addKeys(to map[string]struct{}, keys []string) map[string]struct{} {
	to = maps.Clone(to)
	if to == nil {
		to = map[string]struct{}{}
	}
	for _, key := range keys {
		to[key] = struct{}{}
	}
	return to
}

// expose adds ports as 80/tcp; ranges are written out.
func (s *state) expose(ports []string) error {
	for _, port := range ports {
		number, protocol, found := strings.Cut(port, "/")
		if !found {
			protocol = "tcp"
		}
		first, last, ranged := strings.Cut(number, "-")
		low, err := strconv.ParseUint(first, 10, 16)
		high := low
		if err == nil && ranged {
			high, err = strconv.ParseUint(last, 10, 16)
		}
		protocol = strings.ToLower(protocol)
		if err != nil || low == 0 || high < low || protocol != "tcp" && protocol != "udp" && protocol != "sctp" {
			return fmt.Errorf("port %q: write 80, 80/udp or 8000-8010", port)
		}
		for n := low; n <= high; n++ {
			s.config.Config.ExposedPorts = addKeys(s.config.Config.ExposedPorts, []string{fmt.Sprintf("%d/%s", n, protocol)})
		}
	}
	return nil
}

// commandLine is a command as a configuration has it: with the shell, unless it was written as a list.
func (s *state) commandLine(line instructions.ShellDependantCmdLine) []string {
	if line.PrependShell {
		return append(slices.Clone(s.shell), strings.Join(line.CmdLine, " "))
	}
	return line.CmdLine
}

func (s *state) doArg(in *instructions.ArgCommand) error {
	for _, a := range in.Args {
		if err := s.b.declare(a, s.args, s.env(), s.b.global); err != nil {
			return err
		}
	}
	s.say(in.String(), "")
	s.config.History = append(s.config.History, v1.History{
		Created: v1.Time{Time: s.b.now}, CreatedBy: in.String(), EmptyLayer: true, Comment: "agentvm build",
	})
	return nil // its value counts where it is used
}

func (s *state) doWorkdir(ctx context.Context, in *instructions.WorkdirCommand) error {
	c := &s.config.Config
	dir := path.Join("/", c.WorkingDir, in.Path)
	if path.IsAbs(in.Path) {
		dir = path.Clean(in.Path)
	}
	c.WorkingDir = dir
	text := in.String()
	into, err := s.files(ctx)
	if err != nil {
		return err
	}
	_, n, err := into.resolve(dir, true)
	if err != nil {
		return err
	}
	if n != nil && n.isDir() {
		s.say(text, "")
		s.record(text, nil)
		return nil
	}
	var user owner
	if c.User != "" {
		if user, err = s.findOwner(ctx, c.User); err != nil {
			return fmt.Errorf("USER %s: %w", c.User, err)
		}
	}
	return s.cached(ctx, text, []string{fmt.Sprint(user)}, func(_ context.Context, w io.Writer) error {
		l := s.newLayer(w, into)
		l.dirs = user
		if _, err := l.makeDirs(path.Join(dir, "x")); err != nil {
			return err
		}
		return l.w.Close()
	})
}

// source returns the tree that COPY --from names, and a digest of it; the context without a name.
func (s *state) source(ctx context.Context, from string) (*tree, error) {
	if from == "" {
		return s.b.contextTree(ctx)
	}
	if n, ok := s.b.stageNumber(from, s.number); ok {
		stage, err := s.b.stage(ctx, n)
		if err != nil {
			return nil, err
		}
		return stage.files(ctx)
	}
	name, err := s.b.expand(from, s.b.global)
	if err != nil {
		return nil, err
	}
	key := images.Key{Name: name, Architecture: s.of}
	if t := s.b.images[key]; t != nil {
		return t, nil
	}
	image, err := s.b.Resolve(ctx, name, s.of)
	if err != nil {
		return nil, err
	}
	_, layers, err := s.b.Store.Configuration(ctx, image)
	if err != nil {
		return nil, err
	}
	t, err := s.b.treeOf(ctx, layers)
	s.b.images[key] = t
	return t, err
}

func (s *state) doCopy(ctx context.Context, in *instructions.CopyCommand) error {
	from, err := s.source(ctx, in.From)
	if err != nil {
		return err
	}
	c := &copying{from: from, sources: in.SourcePaths, mode: in.Chmod, exclude: in.ExcludePatterns, parents: in.Parents}
	return s.copy(ctx, fmt.Sprint(in), c, in.SourcesAndDest, in.Chown, in.From == "")
}

// copy does COPY and ADD. What comes from the context belongs to root, unless the instruction says otherwise.
func (s *state) copy(ctx context.Context, text string, c *copying, where instructions.SourcesAndDest, chown string, toRoot bool) error {
	c.dest = where.DestPath
	if !path.IsAbs(c.dest) {
		directory := strings.HasSuffix(c.dest, "/") || c.dest == "." || c.dest == ""
		c.dest = path.Join("/", s.config.Config.WorkingDir, c.dest)
		if directory {
			c.dest += "/"
		}
	}
	for _, f := range where.SourceContents {
		data := f.Data
		if f.Expand {
			var err error
			if data, err = s.b.expand(data, s.env()); err != nil {
				return err
			}
		}
		c.inline = append(c.inline, inlineFile{name: f.Path, node: inlineNode(data)})
	}
	switch {
	case chown != "":
		o, err := s.findOwner(ctx, chown)
		if err != nil {
			return fmt.Errorf("--chown=%s: %w", chown, err)
		}
		c.owner, c.given = &o, true
	case toRoot:
		c.owner = &owner{}
	}
	digest, err := c.digest(ctx)
	if err != nil {
		return err
	}
	return s.cached(ctx, text, []string{digest}, func(ctx context.Context, w io.Writer) error {
		into, err := s.files(ctx)
		if err != nil {
			return err
		}
		return c.write(ctx, s.newLayer(w, into))
	})
}

func (s *state) doAdd(ctx context.Context, in *instructions.AddCommand) error {
	from := newTree()
	local := slices.DeleteFunc(slices.Clone(in.SourcePaths), isRemote)
	if len(local) > 0 {
		var err error
		if from, err = s.b.contextTree(ctx); err != nil {
			return err
		}
	}
	remote := slices.DeleteFunc(slices.Clone(in.SourcePaths), func(name string) bool { return !isRemote(name) })
	if in.KeepGitDir != nil && *in.KeepGitDir && !slices.ContainsFunc(remote, func(name string) bool { _, ok := gitRepository(name); return ok }) {
		return errors.New("--keep-git-dir is of a git repository")
	}
	if in.Checksum != "" && (len(remote) != 1 || len(local) > 0) {
		return errors.New("--checksum is of one file, named by its URL")
	}
	c := &copying{from: from, sources: local, mode: in.Chmod, exclude: in.ExcludePatterns, unpack: in.Unpack == nil || *in.Unpack}
	for _, from := range remote {
		if g, ok := gitRepository(from); ok {
			return fmt.Errorf("ADD %s: agentvm build does not fetch git repositories: clone it into the context and COPY it, or in an image with git write: %s", from, g.advice(in.DestPath))
		}
		name, n, err := s.b.fetch(ctx, from, in.Checksum)
		if err != nil {
			return fmt.Errorf("fetch %s: %w", from, err)
		}
		c.inline = append(c.inline, inlineFile{name: name, node: n, keep: in.Unpack == nil})
	}
	return s.copy(ctx, fmt.Sprint(in), c, in.SourcesAndDest, in.Chown, true)
}

// findOwner resolves user[:group], names by the image's own files.
func (s *state) findOwner(ctx context.Context, text string) (o owner, err error) {
	user, group, hasGroup := strings.Cut(text, ":")
	if o.uid, err = s.findID(ctx, "/etc/passwd", user); err != nil {
		return o, err
	}
	if !hasGroup {
		group = user
		if _, err := strconv.Atoi(user); err == nil {
			o.gid = o.uid
			return o, nil
		}
	}
	o.gid, err = s.findID(ctx, "/etc/group", cmp.Or(group, "0"))
	return o, err
}

const maxID = 1<<31 - 1

func (s *state) findID(ctx context.Context, file, name string) (int, error) {
	if n, err := strconv.Atoi(name); err == nil {
		if n < 0 || n > maxID {
			return 0, fmt.Errorf("%s: no user or group has such a number", name)
		}
		return n, nil
	}
	t, err := s.files(ctx)
	if err != nil {
		return 0, err
	}
	_, n, err := t.resolve(file, true)
	if err != nil {
		return 0, err
	}
	if n == nil || n.open == nil {
		return 0, fmt.Errorf("the image has no %s that could say who %q is: give a number", file, name)
	}
	r, err := n.open()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, 1<<20))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) > 2 && fields[0] == name {
			return strconv.Atoi(fields[2])
		}
	}
	return 0, fmt.Errorf("%s in the image does not have %q", file, name)
}
