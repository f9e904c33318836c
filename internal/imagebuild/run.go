package imagebuild

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"agentvm/images"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
	"agentvm/vm"
)

// hereDir is where the script of a here-document with a #! line is: on a file system of its own, so in no layer.
const hereDir = "/run/agentvm-build"

// ownFiles are each VM's own, and in no layer.
var ownFiles = []string{"etc/resolv.conf", "etc/hosts", "etc/hostname", "etc/machine-id", "var/lib/dbus/machine-id"}

// doRun does a RUN: in a VM that boots what the layers so far make, and whose changes are the layer.
func (s *state) doRun(ctx context.Context, in *instructions.RunCommand) error {
	args, script, err := s.runArgs(in)
	if err != nil {
		return err
	}
	values := maps.Clone(s.args)
	for _, name := range proxyArgs {
		if value, ok := s.b.Args[name]; ok {
			values[name] = value
		}
	}
	var variables []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, own := s.env()[name]; !own || s.env()[name] == values[name] {
			variables = append(variables, name+"="+values[name])
		}
	}
	if len(s.layers) == 0 {
		return errors.New("the image has no files yet that could run")
	}
	for _, d := range instructions.GetDevices(in) {
		if d.Required {
			return fmt.Errorf("--device=%s: VMs have no such devices", d.Name)
		}
	}
	depends := slices.Concat(variables, args, []string{script, instructions.GetNetwork(in)})
	mounts, depends, err := s.runMounts(ctx, in, depends)
	if err != nil {
		return err
	}
	return s.cached(ctx, fmt.Sprint(in), depends, func(ctx context.Context, w io.Writer) error {
		return s.run(ctx, vm.Command{Args: args, Env: variables, Dir: s.config.Config.WorkingDir, User: s.config.Config.User}, script,
			instructions.GetNetwork(in) == instructions.NetworkNone, mounts, w)
	})
}

// runArgs returns the program's arguments, and the script that it is, if it is one.
func (s *state) runArgs(in *instructions.RunCommand) (args []string, script string, err error) {
	args = in.CmdLine
	if len(in.Files) > 0 {
		if len(args) != 1 || !in.PrependShell {
			return nil, "", errors.New("a here-document needs a command for a shell")
		}
		here, first := parser.MustParseHeredoc(args[0]), in.Files[0]
		switch {
		case here == nil:
			full := args[0]
			for _, f := range in.Files {
				full += "\n" + f.Data + f.Name
			}
			args = []string{full}
		default:
			data := first.Data
			if first.Chomp {
				data = parser.ChompHeredocContent(data)
			}
			if strings.HasPrefix(data, "#!") {
				return []string{hereDir + "/script"}, data, nil
			}
			args = []string{data}
		}
	}
	if in.PrependShell {
		args = append(slices.Clone(s.shell), strings.Join(args, " "))
	}
	return args, "", nil
}

// runMount is a RUN --mount.
type runMount struct {
	target  string // absolute
	share   *vm.Mount
	from    *copying // of another stage or image: is copied there before
	isFile  bool     // from is one file
	tmpfs   string   // options of a tmpfs; empty: it is none
	env     string   // variable that has the secret
	cache   string   // path on this host of the archive that is unpacked there before, and made afterwards
	secret  []byte
	mode    os.FileMode
	hasFile bool
}

// runMounts prepares the mounts, and returns what the step depends on with them. Contents of caches and secrets do not count.
func (s *state) runMounts(ctx context.Context, in *instructions.RunCommand, depends []string) (list []runMount, _ []string, err error) {
	for _, m := range instructions.GetMounts(in) {
		target := path.Join("/", s.config.Config.WorkingDir, m.Target)
		if path.IsAbs(m.Target) {
			target = path.Clean(m.Target)
		}
		one := runMount{target: target}
		switch m.Type {
		case instructions.MountTypeCache:
			if target == "/" {
				return nil, nil, errors.New("--mount=type=cache needs a target below /")
			}
			id := cmp.Or(m.CacheID, target)
			one.cache = filepath.Join(s.b.Store.CacheDir(), digestOf(id, path.Base(target))+".tar")
			if m.From == "" {
				break
			}
			digest := ""
			if one.from, one.isFile, digest, err = s.mounted(ctx, m); err != nil {
				return nil, nil, err
			}
			if one.isFile {
				return nil, nil, fmt.Errorf("--mount=type=cache,source=%s: no directory", m.Source)
			}
			depends = append(depends, digest)
		case instructions.MountTypeBind:
			if m.From != "" {
				if target == "/" {
					return nil, nil, errors.New("--mount=type=bind needs a target below /")
				}
				digest := ""
				if one.from, one.isFile, digest, err = s.mounted(ctx, m); err != nil {
					return nil, nil, err
				}
				depends = append(depends, digest)
				break
			}
			if s.b.ContextDir == "" {
				return nil, nil, errors.New("--mount=type=bind: there is no directory to bind")
			}
			t, err := s.b.contextTree(ctx)
			if err != nil {
				return nil, nil, err
			}
			source, n, err := t.resolve(m.Source, true) // never by a link out of the context
			if err != nil {
				return nil, nil, err
			}
			if n == nil || !n.isDir() {
				return nil, nil, fmt.Errorf("--mount=type=bind,source=%s: no directory of the context", m.Source)
			}
			c := &copying{from: t, sources: []string{"/" + source}, dest: "/x/"}
			digest, err := c.digest(ctx)
			if err != nil {
				return nil, nil, err
			}
			depends = append(depends, digest)
			one.share = &vm.Mount{HostPath: filepath.Join(s.b.ContextDir, filepath.FromSlash(source)), GuestPath: target, ReadOnly: m.ReadOnly, CopyOnWrite: !m.ReadOnly}
		case instructions.MountTypeSecret:
			secret, ok := s.b.Secrets[m.CacheID]
			if !ok {
				if m.Required {
					return nil, nil, fmt.Errorf("secret %q was not given: use --secret id=%s,src=FILE", m.CacheID, m.CacheID)
				}
				continue
			}
			if m.Env != nil {
				one.env = *m.Env
				depends = append(depends, "env", one.env)
			}
			if one.secret, one.hasFile, one.mode = secret, m.Env == nil || m.Target != "", 0o400; m.Mode != nil {
				one.mode = os.FileMode(*m.Mode).Perm()
			}
			if m.Target == "" {
				one.target = "/run/secrets/" + m.CacheID
			}
		case instructions.MountTypeTmpfs:
			if target == "/" {
				return nil, nil, errors.New("--mount=type=tmpfs needs a target below /")
			}
			one.tmpfs = "mode=1777"
			if m.SizeLimit > 0 {
				one.tmpfs += fmt.Sprintf(",size=%d", m.SizeLimit)
			}
		default:
			return nil, nil, fmt.Errorf("--mount=type=%s: agentvm build has bind, cache, secret and tmpfs", m.Type)
		}
		depends = append(depends, string(m.Type), target)
		list = append(list, one)
	}
	return list, depends, nil
}

// mounted finds what a mount has of another stage or image, and a digest of it.
func (s *state) mounted(ctx context.Context, m *instructions.Mount) (c *copying, isFile bool, digest string, err error) {
	t, err := s.source(ctx, m.From)
	if err != nil {
		return nil, false, "", err
	}
	source, n, err := t.resolve(m.Source, true)
	if err != nil {
		return nil, false, "", err
	}
	if n == nil {
		return nil, false, "", fmt.Errorf("--mount=type=%s,from=%s,source=%s: nothing is there", m.Type, m.From, m.Source)
	}
	c = &copying{from: t, sources: []string{"/" + source}, dest: "/"}
	if isFile = !n.isDir(); isFile {
		c.dest = "/" + path.Base(m.Target)
	}
	digest, err = c.digest(ctx)
	return c, isFile, digest, err
}

// unpackMount puts what a mount has of another stage or image into a VM. A bind hides what the image has there.
func (s *state) unpackMount(ctx context.Context, files *vm.Files, m runMount) error {
	dir := m.target
	if m.isFile {
		dir = path.Dir(dir)
	}
	if m.cache == "" {
		if err := files.RemoveAll(ctx, m.target); err != nil {
			return err
		}
	}
	if err := files.MkdirAll(ctx, dir, 0o755); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(m.from.write(ctx, s.newLayer(w, newTree()))) }()
	err := files.ExtractTar(ctx, dir, r)
	_ = r.CloseWithError(errors.New("the files are not wanted any more"))
	return err
}

// run runs a command in a fresh VM, and writes the layer of what it changes.
func (s *state) run(ctx context.Context, command vm.Command, script string, offline bool, mounts []runMount, w io.Writer) (err error) {
	if s.image == nil {
		if s.image, err = s.compose(ctx, images.StepName(s.key[:32])); err != nil {
			return err
		}
		s.b.temporary = append(s.b.temporary, s.image)
	}
	config := s.b.VM
	config.Image, config.Platform, config.ColdBoot = s.image.Name, s.of.Platform(), true // no other VM begins like this one
	config.Network.Disabled = config.Network.Disabled || offline
	config.Disk = filepath.Join(s.b.spool, fmt.Sprintf("disk-%d", s.b.step))
	if err := vm.CreateDisk(config.Disk, 0); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(config.Disk)) }()
	var left []string // paths that are in no layer
	for _, m := range mounts {
		left = append(left, strings.TrimPrefix(m.target, "/"))
		if m.share != nil {
			config.Mounts = append(config.Mounts, *m.share)
		}
	}
	v, err := vm.Start(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	// What a RUN leaves in /tmp is in its layer, so that a later one finds it. An image without umount keeps /tmp out of its layers.
	if _, err := v.Run(ctx, vm.Command{Args: []string{"umount", "/tmp"}, User: "root", Dir: "/"}); err != nil {
		return err
	}
	files := v.Files()
	for _, m := range mounts {
		found := false
		if m.cache != "" {
			if found, err = unpackCache(ctx, files, m); err != nil {
				return err
			}
		}
		if m.from != nil && !found {
			if err := s.unpackMount(ctx, files, m); err != nil {
				return err
			}
		}
		if m.tmpfs != "" {
			if err := mountTmpfs(ctx, v, m); err != nil {
				return err
			}
		}
		if m.env != "" {
			command.Env = append(slices.Clip(command.Env), m.env+"="+string(m.secret))
		}
	}
	if script != "" {
		if err := files.MkdirAll(ctx, hereDir, 0o755); err != nil {
			return err
		}
		if err := files.WriteFile(ctx, hereDir+"/script", []byte(script), 0o755); err != nil {
			return err
		}
	}
	for _, m := range mounts {
		if !m.hasFile {
			continue
		}
		if err := files.MkdirAll(ctx, path.Dir(m.target), 0o755); err != nil {
			return err
		}
		if err := files.WriteFile(ctx, m.target, m.secret, m.mode); err != nil {
			return err
		}
	}
	before := map[string][sha256.Size]byte{}
	err = s.layerOf(ctx, v, func(name string, sum [sha256.Size]byte) { before[name] = sum }, nil, left, nil)
	if err != nil {
		return err
	}
	output := &serial{w: s.b.Output}
	command.Stdout, command.Stderr = output, output
	result, err := v.Run(ctx, command)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.cache != "" {
			if err := packCache(ctx, files, m); err != nil {
				return err
			}
		}
	}
	if result.ExitCode != 0 {
		return &ExitError{result.ExitCode}
	}
	return s.layerOf(ctx, v, nil, before, left, tar.NewWriter(w))
}

// mountTmpfs mounts a tmpfs with the image's program. An image without one gets an empty directory of the VM's disk, which is not kept either.
func mountTmpfs(ctx context.Context, v *vm.VM, m runMount) error {
	files := v.Files()
	if err := files.MkdirAll(ctx, m.target, 0o755); err != nil {
		return err
	}
	result, err := v.Run(ctx, vm.Command{Args: []string{"mount", "-t", "tmpfs", "-o", m.tmpfs, "tmpfs", m.target}, User: "root", Dir: "/"})
	switch {
	case err != nil:
		return err
	case result.ExitCode == 126, result.ExitCode == 127:
		return errors.Join(files.RemoveAll(ctx, m.target), files.MkdirAll(ctx, m.target, 0o777|os.ModeSticky))
	case result.ExitCode != 0:
		return fmt.Errorf("--mount=type=tmpfs,target=%s: %s", m.target, bytes.TrimSpace(result.Stderr))
	}
	return nil
}

// serial lets one stream write at a time.
type serial struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *serial) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// unpackCache puts into a VM what the last RUN with a cache has left there, if there was one.
func unpackCache(ctx context.Context, files *vm.Files, m runMount) (bool, error) {
	if err := files.MkdirAll(ctx, m.target, 0o755); err != nil {
		return false, err
	}
	f, _, err := private.Open(m.cache)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return true, files.ExtractTar(ctx, path.Dir(m.target), f)
}

// maxCache bounds a cache of RUN --mount=type=cache, in bytes. A larger one is not kept.
const maxCache = 8 << 30

// packCache keeps what a RUN has left in a cache, for the next one. Of two at the same time the later one counts.
func packCache(ctx context.Context, files *vm.Files, m runMount) error {
	for _, dir := range []string{filepath.Dir(filepath.Dir(m.cache)), filepath.Dir(m.cache)} {
		if err := private.MakeFolder(dir); err != nil {
			return err
		}
	}
	f, err := atomicfile.Create(m.cache)
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err := files.CreateTar(ctx, []string{m.target}, &limited{f, maxCache}); err != nil {
		return fmt.Errorf("keep the cache of %s: %w", m.target, err)
	}
	return f.Commit()
}

// limited is a writer of at most left bytes.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, fmt.Errorf("it has more than %d GiB", maxCache>>30)
	}
	return l.w.Write(p)
}

// maxBefore bounds the content, in bytes, of a file that is compared with what it was before the command.
const maxBefore = 1 << 20

// layerOf reads what a VM has changed, without what before has and what is below left. It calls note for each file, or writes a layer to out.
func (s *state) layerOf(ctx context.Context, v *vm.VM, note func(string, [sha256.Size]byte), before map[string][sha256.Size]byte, left []string, out *tar.Writer) error {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(v.WriteLayer(ctx, w)) }()
	err := s.filter(r, note, before, left, out)
	_ = r.CloseWithError(errors.New("the layer is not wanted any more"))
	if err == nil && out != nil {
		err = out.Close()
	}
	return err
}

func (s *state) filter(r io.Reader, note func(string, [sha256.Size]byte), before map[string][sha256.Size]byte, left []string, out *tar.Writer) error {
	in := tar.NewReader(r)
	for count := 0; ; count++ {
		header, err := in.Next()
		if count > maxNodes {
			return fmt.Errorf("%w: the command has changed more than %d files", images.ErrLimit, maxNodes)
		}
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return fmt.Errorf("the VM's changes: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
		if name == "" || slices.Contains(ownFiles, name) || below(name, left) {
			continue
		}
		var content io.Reader = in
		sum, small := before[name], header.Size <= maxBefore
		if small && (note != nil || sum != [sha256.Size]byte{}) {
			data, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			now := sha256.Sum256(fmt.Appendf(data, "%c %o %d %d %s %v %d", header.Typeflag, header.Mode, header.Uid, header.Gid, header.Linkname, header.PAXRecords, len(data)))
			if note != nil {
				note(name, now)
			}
			if now == sum {
				continue
			}
			content = bytes.NewReader(data)
		}
		if out == nil {
			continue
		}
		header.Name = name
		if header.Typeflag == tar.TypeDir {
			header.Name += "/"
		}
		header.ModTime, header.Uname, header.Gname = s.b.clamp(header.ModTime), "", ""
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(out, content); err != nil {
			return err
		}
	}
}

// below reports whether a path is one of list or below it.
func below(name string, list []string) bool {
	return slices.ContainsFunc(list, func(dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") })
}
