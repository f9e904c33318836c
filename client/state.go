package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"agentvm/images"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
	"agentvm/internal/storage/objectstore"
	"agentvm/internal/storage/snapshot"
	"agentvm/internal/storage/statestore"
	"agentvm/vm"
)

// StateOptions are the options of OpenState.
type StateOptions struct {
	// URL is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, azblob://CONTAINER/PREFIX or file:///DIRECTORY; docs/guide/state.md has the options
	// and credentials. Default: AGENTVM_STATE.
	URL string
	// KeyFile has an age identity, with which everything is encrypted and authenticated. Default: AGENTVM_STATE_KEY; without it nothing is
	// encrypted, and what is read is not trusted.
	KeyFile string
	// Key is the text of such a file, instead of it.
	Key string
	// Getenv has the credentials, and nothing of this process's environment is used. Default: os.Getenv, and the two variables above.
	Getenv func(string) string
	// Logger receives what went wrong and was repeated. Default: none.
	Logger *slog.Logger
}

// StateStore is an object store with snapshots of VMs, from which they continue on any host. All methods may be called from several goroutines and
// processes.
type StateStore struct {
	store  *Store
	remote *statestore.Store
}

// What StateStore tells of snapshots.
type (
	// StateEntry is a snapshot in an object store.
	StateEntry = statestore.Entry
	// StateSaved says what was written.
	StateSaved = statestore.Pushed
	// StatePruned says what was removed.
	StatePruned = statestore.Pruned
)

// OpenState opens an object store. It sends nothing.
func (s *Store) OpenState(o StateOptions) (*StateStore, error) {
	getenv := o.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	if o.URL == "" {
		o.URL = getenv("AGENTVM_STATE")
	}
	if o.URL == "" {
		return nil, errors.New("no object store is named: give its URL, as --state s3://BUCKET/PREFIX, or set AGENTVM_STATE")
	}
	if o.KeyFile == "" && o.Key == "" {
		o.KeyFile = getenv("AGENTVM_STATE_KEY")
	}
	var key *statestore.Key
	var err error
	switch {
	case o.Key != "" && o.KeyFile != "":
		return nil, errors.New("the key of the object store is given as a text and as a file: give one of them")
	case o.Key != "":
		key, err = statestore.ParseKey([]byte(o.Key))
	case o.KeyFile != "":
		key, err = statestore.ReadKey(o.KeyFile)
	}
	if err != nil {
		return nil, err
	}
	remote, err := statestore.Open(o.URL, statestore.Options{Key: key, Logger: o.Logger, Bucket: objectstore.Options{Getenv: o.Getenv}})
	if err != nil {
		return nil, err
	}
	return &StateStore{s, remote}, nil
}

// NewStateKey returns the text of a new key's file.
func NewStateKey() (string, error) { return statestore.NewKey() }

// String is the URL.
func (st *StateStore) String() string { return st.remote.String() }

// SaveOptions are the options of StateStore.Save.
type SaveOptions struct {
	// Comment is kept with the snapshot.
	Comment string
	// NoImage leaves out the VM's image: hosts that restore it have it already, or find it in its registry. The built-in one is always left out.
	NoImage bool
	// Replace replaces a snapshot of that name, of which only what has changed is written. Default: fs.ErrExist.
	Replace bool
	// Since names a snapshot there that has most of this one, as an earlier one of the same VM: what it has is not written again.
	Since string
	// Note is kept with the snapshot: StateSnapshot.Note.
	Note []byte
}

// Save writes a VM into the object store, by a name that is like those of VMs. The VM stands still only for a moment.
func (st *StateStore) Save(ctx context.Context, v *VM, name string, o SaveOptions) (saved StateSaved, err error) {
	if err := statestore.CheckName(name); err != nil {
		return saved, err
	}
	local, err := snapshot.OpenStore(st.store.dir)
	if err != nil {
		return saved, err
	}
	place, err := local.NewFork()
	if err != nil {
		return saved, err
	}
	defer place.Close()
	if _, err := v.Snapshot(ctx, place.Path(), vm.SnapshotOptions{Base: true, Comment: o.Comment}); err != nil {
		return saved, err
	}
	return st.push(ctx, place.Path(), name, o)
}

// Hibernate saves a VM, replacing what was saved by that name, and ends it. Its clock stands from the call on; when it cannot be saved, it runs
// on.
func (st *StateStore) Hibernate(ctx context.Context, v *VM, name string, o SaveOptions) (saved StateSaved, err error) {
	if err := v.Pause(ctx); err != nil {
		return saved, err
	}
	o.Replace = true
	if saved, err = st.Save(ctx, v, name, o); err != nil {
		return saved, errors.Join(err, v.Resume(context.WithoutCancel(ctx)))
	}
	_, err = st.store.Stop(context.WithoutCancel(ctx), v.Name(), 0) // it is saved: its programs need not end
	return saved, err
}

// Push writes a snapshot of the local store into the object store.
func (st *StateStore) Push(ctx context.Context, from, name string, o SaveOptions) (saved StateSaved, err error) {
	local, err := snapshot.OpenStore(st.store.dir)
	if err != nil {
		return saved, err
	}
	path, err := local.Path(from)
	if err != nil {
		return saved, err
	}
	return st.push(ctx, path, name, o)
}

func (st *StateStore) push(ctx context.Context, path, name string, o SaveOptions) (saved StateSaved, err error) {
	file, err := snapshot.Open(path)
	if err != nil {
		return saved, err
	}
	defer file.Close()
	p := statestore.Push{File: file, Replace: o.Replace, Since: o.Since, Note: o.Note}
	if image := file.Meta().Image; !o.NoImage && image != images.BuiltinName {
		p.Image = func(ctx context.Context) (io.ReadCloser, error) {
			return st.openImage(ctx, image, file.Meta().Architecture())
		}
	}
	return st.remote.Push(ctx, name, p)
}

// openImage reads an image of the local store as an OCI archive.
func (st *StateStore) openImage(ctx context.Context, name string, of platform.Architecture) (io.ReadCloser, error) {
	store, err := images.Open(st.store.dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(store.For(of).Save(ctx, name, "oci-archive:-", w, nil))
	}()
	return &imageReader{r, func() { cancel(); r.Close(); <-done }}, nil
}

type imageReader struct {
	io.Reader
	close func()
}

func (r *imageReader) Close() error {
	r.close()
	return nil
}

// List describes the snapshots by name.
func (st *StateStore) List(ctx context.Context) ([]StateEntry, error) { return st.remote.List(ctx) }

// Remove removes a snapshot; fs.ErrNotExist when there is none of that name. Prune frees what it takes.
func (st *StateStore) Remove(ctx context.Context, name string) error {
	return st.remote.Remove(ctx, name)
}

// Prune removes what no snapshot needs any more: once to mark it, and once at least an hour later to remove it.
func (st *StateStore) Prune(ctx context.Context, dryRun bool) (StatePruned, error) {
	return st.remote.Prune(ctx, dryRun)
}

// Pull writes a snapshot of the object store, by the name from, into the local store, with its image when that is missing.
func (st *StateStore) Pull(ctx context.Context, from, name string) error {
	local, err := snapshot.OpenStore(st.store.dir)
	if err != nil {
		return err
	}
	path, err := local.Path(name)
	if err != nil {
		return err
	}
	m, err := st.remote.Read(ctx, from)
	if err != nil {
		return err
	}
	if _, err := st.image(ctx, m); err != nil {
		return err
	}
	return st.remote.Pull(ctx, m, local, path)
}

// StateRestoration says how a VM continues from a snapshot of an object store.
type StateRestoration struct {
	// Config returns what the VM is started with; DiskSize is the snapshot's, and Image the one that was found. Default: what the snapshot says,
	// which grants nothing of the host (Started.Config).
	Config func(Started) (Config, error)
	// KeepPrograms, SameIdentity, Adopt and Identity are as in Restoration.
	KeepPrograms, SameIdentity bool
	Adopt                      []string
	Identity                   *Identity
	// Fetched is called when all is in the local store, before the VM starts. After an error it does not. May be nil.
	Fetched func() error
	// Progress receives lines about the start. May be nil.
	Progress Progress
}

// Restore makes a VM that continues from the snapshot from of the object store. Nothing of it is kept in the local store but the VM, its
// image and what the snapshot was layered on.
func (st *StateStore) Restore(ctx context.Context, from, name string, r StateRestoration) (*VM, error) {
	s, err := st.Read(ctx, from)
	if err != nil {
		return nil, err
	}
	return s.Restore(ctx, name, r)
}

// StateSnapshot is what an object store says of a snapshot.
type StateSnapshot struct {
	store    *StateStore
	manifest *statestore.Manifest
}

// Read reads what the object store has of a snapshot, and not the VM's memory; fs.ErrNotExist when there is none of that name.
func (st *StateStore) Read(ctx context.Context, name string) (*StateSnapshot, error) {
	m, err := st.remote.Read(ctx, name)
	if err != nil {
		return nil, err
	}
	return &StateSnapshot{st, m}, nil
}

// Note is SaveOptions.Note.
func (s *StateSnapshot) Note() []byte { return s.manifest.Note }

// Meta describes the saved VM.
func (s *StateSnapshot) Meta() snapshot.Meta { return s.manifest.Info() }

// Restore is StateStore.Restore of this snapshot.
func (s *StateSnapshot) Restore(ctx context.Context, name string, r StateRestoration) (*VM, error) {
	st, m := s.store, s.manifest
	local, err := snapshot.OpenStore(st.store.dir)
	if err != nil {
		return nil, err
	}
	started, err := StartedAs(m.Info())
	if err != nil {
		return nil, err
	}
	if r.Config == nil {
		r.Config = Started.Config
	}
	config, err := r.Config(started)
	if err != nil {
		return nil, err
	}
	if config.StoreDir == "" {
		config.StoreDir = st.store.dir
	}
	if config.Image, err = st.image(ctx, m); err != nil {
		return nil, err
	}
	place, err := local.NewFork()
	if err != nil {
		return nil, err
	}
	defer place.Close() // the VM has it mapped
	if err := st.remote.Pull(ctx, m, local, place.Path()); err != nil {
		return nil, err
	}
	if r.Fetched != nil {
		if err := r.Fetched(); err != nil {
			return nil, err
		}
	}
	return st.store.Restore(ctx, name, config, Restoration{
		Snapshot: place.Path(), KeepPrograms: r.KeepPrograms, SameIdentity: r.SameIdentity, Adopt: r.Adopt, Identity: r.Identity,
	}, r.Progress)
}

// image returns the name of the local image that a snapshot's VM has, which is fetched when it is missing.
func (st *StateStore) image(ctx context.Context, m *statestore.Manifest) (string, error) {
	meta := m.Info()
	if meta.Image == images.BuiltinName {
		return meta.Image, nil
	}
	store, err := images.Open(st.store.dir)
	if err != nil {
		return "", err
	}
	list, err := store.List()
	if err != nil {
		return "", err
	}
	found := ""
	for _, i := range list {
		if strings.TrimPrefix(i.RootDiskDigest, "sha256:") == meta.RootDisk && (found == "" || i.Name == meta.Image) {
			found = i.Name
		}
	}
	if found != "" {
		return found, nil
	}
	if m.Image == nil {
		return meta.Image, nil // its start pulls it, and says so when it cannot
	}
	folder, err := atomicfile.MkdirTemp(st.store.dir, "state")
	if err != nil {
		return "", err
	}
	defer folder.Remove()
	archive := filepath.Join(folder.Path(), fmt.Sprintf("state-%.12s.tar", meta.RootDisk)) // the image gets this name
	f, err := os.OpenFile(archive, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	err = st.remote.PullImage(ctx, m, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	image, err := store.For(meta.Architecture()).Pull(ctx, "oci-archive:"+archive, nil)
	if err != nil {
		return "", fmt.Errorf("image %s of the snapshot: %w", meta.Image, err)
	}
	if digest := strings.TrimPrefix(image.RootDiskDigest, "sha256:"); digest != meta.RootDisk {
		return "", errors.Join(fmt.Errorf("the image in %s is not the one that the VM had (root disk %.12s, not %.12s)", st, digest, meta.RootDisk), store.Untag(image))
	}
	return image.Name, nil
}
