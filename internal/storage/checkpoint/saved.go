// Package checkpoint keeps the states from which a VM continues instead of booting: saved machines in files, shared between the VMs of a process
// and trusted as far as their origin permits; the bases of a store; what was captured of a running VM, on its way to forks or a file; and the
// identity that distinguishes a copy from its original. docs/internals/saved-machines.md is the design.
//
// It runs no machine and talks to no guest: package vm does that, and says when. All functions may be called from several goroutines.
package checkpoint

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"

	"agentvm/internal/host/refcount"
	"agentvm/internal/machine"
	"agentvm/internal/storage/snapshot"
)

// inUse has the saved machines that VMs of this process use, by their files' names.
var inUse = refcount.Map[*Saved]{Free: func(s *Saved) {
	_ = s.Image.Close()
	_ = s.File.Close()
}}

// InUse returns how many saved machines the VMs of this process use.
func InUse() int { return inUse.Len() }

// Saved is a VM's reference to a saved machine: an open file, and the image of its memory. VMs that continue from one file share both,
// which the last Close closes. A nil *Saved is none: Retain and Close do nothing.
type Saved struct {
	File  *snapshot.File
	Image *machine.MemoryImage

	checked *atomic.Bool // the contents are verified, or are being verified
	ref     *refcount.Ref[*Saved]
}

// Open opens a snapshot, or shares it when a VM of this process continues from the same ID and path. The ID alone would not do:
// it stands for contents that are not verified yet, and a user who copies the header of another user's file must not
// have that user's VMs start from the copy. The caller of a trusted file vouches for it, see machine.Program.Restore.
func Open(path string, trusted bool) (*Saved, error) {
	file, err := snapshot.Open(path)
	if err != nil {
		return nil, err
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	used := false
	s, err := acquire("snapshot\x00"+file.ID()+"\x00"+path, trusted, func() (*snapshot.File, error) { used = true; return file, nil })
	if !used {
		_ = file.Close()
	}
	return s, err
}

// acquire returns the saved machine of a name. open opens it when no VM of this process uses it. The image is trusted when the
// store has written the file or the caller trusts it.
func acquire(name string, trusted bool, open func() (*snapshot.File, error)) (*Saved, error) {
	if trusted {
		name += "\x00trusted"
	}
	ref, err := inUse.Acquire(name, func() (*Saved, error) { return load(trusted, open) })
	if err != nil {
		return nil, err
	}
	return reference(ref), nil
}

func reference(ref *refcount.Ref[*Saved]) *Saved {
	s := *ref.Value
	s.ref = ref
	return &s
}

func load(trusted bool, open func() (*snapshot.File, error)) (*Saved, error) {
	file, err := open()
	if err != nil {
		return nil, err
	}
	var extents []machine.Extent
	for _, r := range file.Memory() {
		extents = append(extents, machine.Extent{At: r.At, Length: r.Length, File: r.File, Offset: r.Offset})
	}
	newImage := machine.NewImage
	if trusted || file.Own() {
		newImage = machine.NewTrustedImage
	}
	image, err := newImage(file.Meta().LinearMemory, extents)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Path(), errors.Join(err, file.Close()))
	}
	var extra baseExtra
	if json.Unmarshal(file.Meta().Extra, &extra) == nil { // only bases have it
		_ = image.Expect(extra.Written) // an invalid list is only of no use
	}
	return &Saved{File: file, Image: image, checked: new(atomic.Bool)}, nil
}

// Retain returns another reference. It must be called before this one is closed.
func (s *Saved) Retain() *Saved {
	if s == nil {
		return nil
	}
	return reference(s.ref.Retain())
}

// Close gives up the reference. Calling it twice does no harm.
func (s *Saved) Close() {
	if s != nil {
		s.ref.Release()
	}
}

// Identity distinguishes a VM from others that continue from the same memory.
type Identity struct {
	Generation uint64           // forks and restores that led to this VM
	ID         [16]byte         // random, for each VM
	MAC        net.HardwareAddr // of the network card; nil: netstack's default
	Renewed    bool             // the guest has to take a new identity
}

// NewIdentity returns the identity of a VM that continues from no other.
func NewIdentity() Identity {
	var i Identity
	_, _ = rand.Read(i.ID[:])
	return i
}

// Successor returns the identity of a VM that continues from one with identity i; with renewed it gets another MAC and host name.
func (i Identity) Successor(renewed bool) Identity {
	next := NewIdentity()
	next.Generation, next.MAC, next.Renewed = max(i.Generation, i.Generation+1), i.MAC, renewed // a file may claim any number, so an overflow is possible
	if renewed {
		next.MAC = make(net.HardwareAddr, 6)
		_, _ = rand.Read(next.MAC)
		next.MAC[0] = next.MAC[0]&^1 | 2 // one station, administered locally (IEEE 802 section 8.2)
	}
	return next
}

// Hostname returns the host name of a VM that continues from one called name.
func (i Identity) Hostname(name string) string {
	if !i.Renewed {
		return name
	}
	const maxHostname = 64 // Linux's HOST_NAME_MAX
	suffix := "-" + hex.EncodeToString(i.ID[:3])
	return name[:min(len(name), maxHostname-len(suffix))] + suffix
}
