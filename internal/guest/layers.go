//go:build linux

package guest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/files"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// A copy-on-write share is an overlay: the host's directory, read-only, below a layer on the root's writable layer, which keeps what
// programs change. The layer survives what the root survives: a restart where the root is on a disk, and every snapshot and fork. No path
// of the guest's root leads to it.
//
//	virtiofs ── lower (detached when the overlay has it)
//	upper.dir ─ cow/KEY/data, work ─────────────────────► overlay on the share's target
//
// The overlay copies a file's extended attributes with the file. The host's server gives each file one, baseAttribute, that names the
// file and its version, and which so arrives in the layer at the moment of the copy (package changes).
const (
	layersDir      = "cow"
	baseAttribute  = "trusted.agentvm.base"
	beganAttribute = "trusted.agentvm.began" // of a layer: nanoseconds since 1970 by the host's clock, 8 bytes
	applyAttribute = "trusted.agentvm.apply" // of a layer that the host is applying, or was when it was killed: a random number, 8 bytes
	// opaqueAttribute is overlayfs's, see Linux's Documentation/filesystems/overlayfs.rst. Its value is y.
	opaqueAttribute = "trusted.overlay.opaque"
)

// layerPath is the path of the layer of the share at target, which does not lead through the guest's root.
func (u upper) layerPath(target string) string {
	sum := sha256.Sum256([]byte(target))
	return fmt.Sprintf("/proc/self/fd/%d/%s/%x", u.dir.Fd(), layersDir, sum[:16])
}

// mountCopyOnWrite mounts a share below its layer.
func mountCopyOnWrite(m guestrpc.Mount, u upper, now time.Time) error {
	if u.dir == nil {
		return errors.New("there is no writable layer for copy-on-write shares")
	}
	dir := u.layerPath(m.Target)
	lower := dir + "/lower"
	if err := os.MkdirAll(lower, 0o700); err != nil {
		return err
	}
	if err := mountVirtiofs(m.Tag, lower, syscall.MS_NODEV|syscall.MS_RDONLY); err != nil {
		return err
	}
	defer func() { _ = syscall.Unmount(lower, noFollow|detachNow) }() // the overlay has its own reference
	if err := beginLayer(dir, lower, now); err != nil {
		return err
	}
	// A directory of the host cannot be renamed but by a copy (EXDEV), as in containers, so that each entry of a layer stands for itself.
	data := "lowerdir=" + lower + ",upperdir=" + dir + "/data,workdir=" + dir + "/work,redirect_dir=off,metacopy=off,index=off"
	if err := syscall.Mount("overlay", m.Target, "overlay", syscall.MS_NODEV, data); err != nil {
		return fmt.Errorf("mount the layer of %s: %w", m.Target, err)
	}
	return nil
}

// beginLayer makes the layer's directories where they are missing. Its root has the permissions of the host's directory. When it began is compared
// with times of the host's files, so the host says it: this machine's clock is set late, drifts, and is whatever a program sets.
func beginLayer(dir, lower string, now time.Time) error {
	if err := os.MkdirAll(dir+"/work", 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(dir + "/data"); err != nil {
		info, err := os.Stat(lower)
		if err != nil {
			return err
		}
		if err := os.Mkdir(dir+"/data", 0o700); err != nil {
			return err
		}
		if err := os.Chmod(dir+"/data", info.Mode().Perm()|info.Mode()&os.ModeSticky); err != nil {
			return err
		}
	}
	if _, err := unix.Lgetxattr(dir, beganAttribute, make([]byte, 8)); err == nil {
		return nil
	}
	if now.IsZero() { // a host of an earlier version
		now = time.Now()
	}
	return setBegan(dir, now)
}

func setBegan(dir string, t time.Time) error {
	value := binary.LittleEndian.AppendUint64(nil, uint64(t.UnixNano()))
	return os.NewSyscallError("note when the layer began", unix.Lsetxattr(dir, beganAttribute, value, 0))
}

// bulkFiles is the file service with the layers.
type bulkFiles struct {
	*files.Service
	s *Supervisor
}

var _ guestrpc.LayersHandler = bulkFiles{}

// Layer opens the layer of the share at target.
func (b bulkFiles) Layer(target string) (guestrpc.LayerHandler, guestrpc.LayerState, error) {
	s := b.s
	s.starting.Lock()
	defer s.starting.Unlock()
	var state guestrpc.LayerState
	if target == "/" {
		content, err := files.New(fmt.Sprintf("/proc/self/fd/%d/data", s.upper.dir.Fd()))
		return rootLayer{&layer{s: s, target: target, files: content}}, state, err
	}
	if !slices.ContainsFunc(s.shares.mounted, func(m guestrpc.Mount) bool { return m.CopyOnWrite && m.Target == target }) {
		return nil, state, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.ENOENT, Message: target + " is not a copy-on-write mount of this VM"}
	}
	dir := s.upper.layerPath(target)
	began, err := readNumber(dir, beganAttribute)
	if err != nil {
		return nil, state, os.NewSyscallError("read when the layer began", err)
	}
	apply, err := readNumber(dir, applyAttribute)
	if err != nil && err != unix.ENODATA {
		return nil, state, os.NewSyscallError("read whether the layer is being applied", err)
	}
	ends, err := s.upper.ends()
	if err != nil {
		return nil, state, err
	}
	content, err := files.New(dir + "/data")
	if err != nil {
		return nil, state, err
	}
	state = guestrpc.LayerState{Began: time.Unix(0, int64(began)), Interrupted: apply}
	return &layer{s: s, target: target, ends: ends, files: content, left: []string{""}}, state, nil
}

// readNumber reads an attribute of 8 bytes.
func readNumber(name, attribute string) (uint64, error) {
	value := make([]byte, 8)
	_, err := unix.Lgetxattr(name, attribute, value)
	return binary.LittleEndian.Uint64(value), err
}

// layer is the layer of a copy-on-write share, for one host.
type layer struct {
	s       *Supervisor
	target  string
	ends    ends
	files   *files.Service // its content
	left    []string       // directories that are not listed yet
	listing guestrpc.DirHandler
	at      string // what listing lists
}

// Parts of a listing.
const (
	layerEntries = 256
	layerText    = 512 << 10 // bytes, after which a part ends
)

func (l *layer) Close() error {
	if l.listing != nil {
		_ = l.listing.Close()
	}
	return l.files.Close()
}

func (l *layer) data() string { return l.s.upper.layerPath(l.target) + "/data" }

func (l *layer) Next() (entries []guestrpc.LayerEntry, err error) {
	text := 0
	for len(entries) < layerEntries && text < layerText {
		if l.listing == nil {
			if len(l.left) == 0 {
				break
			}
			l.at, l.left = l.left[len(l.left)-1], l.left[:len(l.left)-1]
			l.listing, err = l.files.OpenDir("/" + l.at)
			if errors.Is(err, os.ErrNotExist) { // it has been removed meanwhile
				l.listing = nil
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		infos, err := l.listing.Next(min(32, layerEntries-len(entries)))
		if errors.Is(err, io.EOF) {
			_ = l.listing.Close()
			l.listing = nil
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			e := l.entry(path.Join(l.at, info.Name), info)
			if len(e.Path) > guestrpc.MaxLayerPath {
				return nil, &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.ENAMETOOLONG, Message: "directories are nested too deep in " + l.target}
			}
			if info.IsDir() {
				l.left = append(l.left, e.Path)
			}
			text += len(e.Path) + len(e.Base) + len(e.Info.Target)
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return nil, io.EOF
	}
	return entries, nil
}

func (l *layer) Pack(ctx context.Context, w io.Writer) (guestrpc.Summary, error) {
	return l.files.Pack(ctx, w, []string{"/"}, guestrpc.PackOptions{Layer: true, OneFileSystem: true})
}

// rootLayer is what was changed of the image. It can be packed, and nothing else.
type rootLayer struct{ *layer }

var errRootLayer = &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EOPNOTSUPP, Message: "what was changed of the image can only be packed"}

func (rootLayer) Next() ([]guestrpc.LayerEntry, error)          { return nil, errRootLayer }
func (rootLayer) Open(string) (guestrpc.FileHandler, error)     { return nil, errRootLayer }
func (rootLayer) Begin(uint64) error                            { return errRootLayer }
func (rootLayer) Settle([]guestrpc.LayerEntry, time.Time) error { return errRootLayer }
func (rootLayer) Discard([]string, time.Time) error             { return errRootLayer }

// entry says what a file of the layer stands for. A character device 0:0 says that the name is removed.
func (l *layer) entry(name string, info guestrpc.FileInfo) guestrpc.LayerEntry {
	e := guestrpc.LayerEntry{Path: name, Info: info}
	full := l.data() + "/" + name
	value := make([]byte, guestrpc.MaxLayerBase)
	switch info.Mode.Type() {
	case os.ModeDevice | os.ModeCharDevice:
		var st unix.Stat_t
		if unix.Lstat(full, &st) == nil && st.Rdev == 0 {
			e.Kind = guestrpc.LayerRemoval
			return e
		}
	case os.ModeDir:
		if n, err := unix.Lgetxattr(full, opaqueAttribute, value); err == nil && string(value[:n]) == "y" {
			e.Kind = guestrpc.LayerOpaque
		}
	case 0:
		var st unix.Stat_t
		e.Torn = len(l.ends) > 0 && unix.Lstat(full, &st) == nil && l.ends.torn(time.Unix(st.Ctim.Unix()))
	}
	if n, err := unix.Lgetxattr(full, baseAttribute, value); err == nil {
		e.Base = string(value[:n])
	}
	return e
}

func (l *layer) Open(name string) (guestrpc.FileHandler, error) {
	return l.files.Open("/"+name, guestrpc.OpenOptions{Read: true})
}

// checkLayerPath refuses names that do not lead below the layer: a mistake on the host.
func checkLayerPath(name string) error {
	if name == "" || path.Clean("/"+name) != "/"+name {
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("%q is no path below a layer", name)}
	}
	return nil
}

func (l *layer) Begin(apply uint64) error {
	value := binary.LittleEndian.AppendUint64(nil, apply)
	return os.NewSyscallError("note that the layer is being applied", unix.Lsetxattr(l.s.upper.layerPath(l.target), applyAttribute, value, 0))
}

func (l *layer) Settle(entries []guestrpc.LayerEntry, began time.Time) error {
	for _, e := range entries {
		if err := checkLayerPath(e.Path); err != nil {
			return err
		}
		err := unix.Lsetxattr(l.data()+"/"+e.Path, baseAttribute, []byte(e.Base), 0)
		if err != nil && err != unix.ENOENT && err != unix.ENOTDIR { // a program has removed it meanwhile
			return &os.PathError{Op: "settle", Path: e.Path, Err: err}
		}
	}
	dir := l.s.upper.layerPath(l.target)
	if !began.IsZero() {
		if err := setBegan(dir, began); err != nil {
			return err
		}
	}
	if err := unix.Lremovexattr(dir, applyAttribute); err != nil && err != unix.ENODATA {
		return os.NewSyscallError("note that the layer is applied", err)
	}
	return nil
}

// Discard unmounts the share, changes the layer, and mounts the share again: overlayfs does not see changes below it.
func (l *layer) Discard(paths []string, now time.Time) (err error) {
	for _, name := range paths {
		if err := checkLayerPath(name); err != nil {
			return err
		}
	}
	s := l.s
	s.starting.Lock()
	defer s.starting.Unlock()
	i := slices.IndexFunc(s.shares.mounted, func(m guestrpc.Mount) bool { return m.CopyOnWrite && m.Target == l.target })
	if i < 0 {
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.ENOENT, Message: l.target + " is not mounted any more"}
	}
	m := s.shares.mounted[i]
	switch err := syscall.Unmount(m.Target, noFollow); {
	case err == syscall.EBUSY:
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBUSY, Message: "programs in the VM use " + m.Target + ": end them, or restart the VM, and discard then"}
	case err != nil && err != syscall.EINVAL: // a program has unmounted it
		return &os.PathError{Op: "unmount", Path: m.Target, Err: err}
	}
	defer func() { err = errors.Join(err, mountShare(m, s.upper, now)) }()
	if len(paths) == 0 {
		return os.RemoveAll(s.upper.layerPath(m.Target))
	}
	for _, name := range paths {
		if err := l.files.Remove("/"+name, true); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
