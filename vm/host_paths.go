package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"

	"agentvm/images"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/host/private"
	"agentvm/internal/share/mount"
	"agentvm/internal/storage/volume"
)

// hostSet has the host's directories and sockets that a guest gets, open. All are opened before the machine runs, and compared with each
// other: a guest must not be able to change what another of its mounts means.
type hostSet struct {
	guard   *hostpath.Guard
	mounts  []*hostMount
	sockets []*hostpath.Socket
}

// hostMount is a directory that the guest mounts.
type hostMount struct {
	spec    mount.Spec
	place   *hostpath.Place
	masks   []string // the specification's, and the store
	covered []string // paths in it that are other mounts
}

// openHostPaths opens the directories and sockets of the configuration.
func (r *resources) openHostPaths(ctx context.Context, c Config) error {
	if len(c.Mounts)+len(c.UnixSockets) == 0 {
		return nil
	}
	set, err := openHostSet(c, r.store.Dir())
	if err != nil {
		return err
	}
	defer set.close()
	if err := set.guard.Remember(ctx, r.store.Dir(), set.writable()); err != nil {
		return err
	}
	r.guard = mount.NewGuard(c.Logger)
	r.shares, err = openShares(set, r.guard, c)
	r.sockets, set.sockets = set.sockets, nil
	return err
}

// PathIdentity tells a directory or socket of the host from another one that takes its place at the same path.
type PathIdentity = hostpath.Identity

// Pin returns what the host's paths in a configuration lead to now: the directories of Mounts and the sockets. A program that keeps a
// configuration stores that in the Identity of mount.Spec and UnixSocket, so that Start refuses a path that leads elsewhere later.
// What is wrong with the paths is an error, as in Start.
func (c Config) Pin() ([]PathIdentity, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	store, err := c.storeDir()
	if err != nil {
		return nil, err
	}
	set, err := openHostSet(c, store)
	if err != nil {
		return nil, err
	}
	defer set.close()
	var list []hostpath.Identity
	for _, m := range set.mounts {
		list = append(list, m.place.Identity)
	}
	for _, s := range set.sockets {
		if place := s.Place(); place != nil {
			list = append(list, place.Identity)
		}
	}
	return list, nil
}

// openHostSet opens and compares everything. On failure nothing stays open.
func openHostSet(c Config, store string) (*hostSet, error) {
	set := &hostSet{}
	if err := set.open(c, store); err != nil {
		set.close()
		return nil, err
	}
	return set, nil
}

func (set *hostSet) open(c Config, store string) (err error) {
	if set.guard, err = hostpath.Known(store); err != nil {
		return err
	}
	for _, spec := range c.Mounts {
		if spec.ReadOnly && spec.CopyOnWrite {
			return fmt.Errorf("mount %s: it cannot be both read-only and copy-on-write", spec.HostPath)
		}
		place, err := mount.OpenDir(spec.HostPath, spec.Identity)
		if err != nil {
			return advise(err)
		}
		spec.Identity = place.Identity
		set.mounts = append(set.mounts, &hostMount{spec: spec, place: place, masks: spec.Masks})
	}
	for _, place := range set.writable() {
		set.guard.Add(place)
	}
	for _, m := range set.mounts {
		if err := set.guard.Check(m.place); err != nil {
			return fmt.Errorf("mount %s: %w", m.spec.HostPath, err)
		}
	}
	if err := set.hideStores(c, store); err != nil {
		return err
	}
	set.cover()
	return set.openSockets(c)
}

// openSockets opens the sockets of the host. It refuses one in a writable mount, where the guest could put another socket of the user.
func (set *hostSet) openSockets(c Config) error {
	for _, s := range c.UnixSockets {
		socket, err := set.guard.OpenSocket(s.Host, s.Identity)
		if errors.As(err, new(*hostpath.ChangedError)) {
			err = fmt.Errorf("%w; if that is wanted, give the socket again (--socket)", err)
		}
		if err != nil {
			return fmt.Errorf("socket %s: %w", s.Host, err)
		}
		set.sockets = append(set.sockets, socket)
		for _, m := range set.mounts {
			if m.spec.FixedHost() || socket.Place() == nil {
				continue
			}
			if _, inside := set.guard.Within(socket.Place(), m.place); inside {
				return fmt.Errorf("socket %s: it is in the mount %s, where the machine could put another one in its place: "+
					"have its server listen elsewhere, or make the mount read-only (:ro)", s.Host, m.spec.HostPath)
			}
		}
	}
	return nil
}

// advise adds to the error of a directory that has changed what to do.
func advise(err error) error {
	if errors.As(err, new(*hostpath.ChangedError)) {
		return fmt.Errorf("%w; if that is wanted, give the mount again (-m)", err)
	}
	return err
}

func (set *hostSet) close() {
	for _, m := range set.mounts {
		_ = m.place.Close()
	}
	for _, s := range set.sockets {
		_ = s.Close()
	}
}

// writable returns the directories that the guest can change.
func (set *hostSet) writable() (list []*hostpath.Place) {
	for _, m := range set.mounts {
		if !m.spec.FixedHost() {
			list = append(list, m.place)
		}
	}
	return list
}

// hideStores hides the store and the folder of keys in mounts that contain them, and refuses mounts inside of them, except volumes: they have
// what VMs boot, code that the host executes, keys, and other VMs' files.
func (set *hostSet) hideStores(c Config, dir string) error {
	dirs := []string{dir}
	if usual, err := images.DefaultDir(); err == nil && usual != dir {
		dirs = append(dirs, usual)
	}
	for _, dir := range dirs {
		dirs = append(dirs, linkedParts(dir)...)
	}
	if keys, err := private.UserFolder(); err == nil { // without a folder there are no keys
		dirs = append(dirs, keys)
	}
	for _, dir := range dirs {
		store, rest, err := nearest(dir)
		if err != nil {
			return fmt.Errorf("compare the mounts with the store: %w", err)
		}
		err = set.hideStore(c, store, rest)
		_ = store.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// nearest opens a directory, or the first existing one above it; rest is what is missing, slash-separated.
func nearest(dir string) (place *hostpath.Place, rest string, err error) {
	for {
		place, err = hostpath.Resolve(dir)
		above := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || above == dir {
			return place, rest, err
		}
		dir, rest = above, path.Join(filepath.Base(dir), rest)
	}
}

// linkedParts returns the parts of a store that are symbolic links to other places.
func linkedParts(store string) (list []string) {
	entries, _ := os.ReadDir(store) // if that fails, Start fails too
	for _, e := range entries {
		if e.Type() == fs.ModeSymlink {
			list = append(list, filepath.Join(store, e.Name()))
		}
	}
	return list
}

func (set *hostSet) hideStore(c Config, store *hostpath.Place, rest string) error {
	for _, m := range set.mounts {
		if rel, inside := set.guard.Within(m.place, store); inside && rest == "" && !volume.IsData(rel) {
			return fmt.Errorf("mount %s: it is in agentvm's store, %s, which has what machines boot, their disks and keys: "+
				"mount another directory, or move the store (AGENTVM_STORE)", m.spec.HostPath, store.Real)
		}
		if rel, inside := set.guard.Within(store, m.place); inside && path.Join(rel, rest) != "." {
			rel = path.Join(rel, rest)
			c.Logger.Info("what agentvm keeps is in a mount, and hidden there", "mount", m.spec.HostPath, "hidden", rel)
			m.masks = append(m.masks[:len(m.masks):len(m.masks)], rel)
		}
	}
	return nil
}

// cover protects each mounted directory that is inside of another writable mount from being replaced there.
func (set *hostSet) cover() {
	for _, inner := range set.mounts {
		for _, outer := range set.mounts {
			rel, inside := set.guard.Within(inner.place, outer.place)
			if inside && rel != "." && !outer.spec.FixedHost() {
				outer.covered = append(outer.covered, rel)
			}
		}
	}
}

// OpenOutput opens a file of the host for reports about a VM of this configuration, for writing, with O_APPEND or O_TRUNC of package
// os. It follows no link that a guest may have made, and none at all when was is the path's identity. It refuses a file in a writable
// mount of the VM, whose guest could change the report or have another file of the user written.
func (c Config) OpenOutput(path string, was PathIdentity, flag int) (*os.File, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	store, err := c.storeDir()
	if err != nil {
		return nil, err
	}
	c.UnixSockets = nil
	set, err := openHostSet(c, store)
	if err != nil {
		return nil, err
	}
	defer set.close()
	place, err := set.guard.OpenNew(path, was)
	if errors.Is(err, fs.ErrNotExist) { // err names a directory on the way
		err = fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	defer place.Close()
	for _, m := range set.mounts {
		if _, inside := set.guard.Within(place, m.place); inside && !m.spec.FixedHost() {
			return nil, fmt.Errorf("%s: it is in the mount %s, where the machine could change it: write it elsewhere, or make the mount read-only (:ro)", path, m.spec.HostPath)
		}
	}
	return place.OpenFile(os.O_WRONLY|os.O_CREATE|flag, 0o600, true)
}

// storeDir returns the store's directory.
func (c Config) storeDir() (string, error) {
	if c.StoreDir != "" {
		return c.StoreDir, nil
	}
	return images.DefaultDir()
}
