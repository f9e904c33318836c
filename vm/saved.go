package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"agentvm/internal/machine"
	"agentvm/internal/snapshot"
)

// savedInUse has the saved machines that are in use, by their files' names. VMs that continue from the same file share it.
var savedInUse = shared[*savedFile]{free: func(s *savedFile) {
	_ = s.image.Close()
	_ = s.file.Close()
}}

// savedFile is a saved machine: an open file and the image of its memory.
type savedFile struct {
	file    *snapshot.File
	image   *machine.MemoryImage
	checked atomic.Bool // its contents are verified, or a VM is verifying them
}

// saved is a VM's reference to a savedFile.
type saved struct {
	*savedFile
	entry *sharedEntry[*savedFile]
	once  sync.Once
}

// acquireSaved returns the saved machine of a name. open opens it when no VM of this process uses it. The image is trusted when the
// store has written the file or the caller trusts it, see machine.Program.Restore.
func acquireSaved(name string, trusted bool, open func() (*snapshot.File, error)) (*saved, error) {
	if trusted {
		name += "\x00trusted"
	}
	e, err := savedInUse.acquire(name, func() (*savedFile, error) { return loadSaved(trusted, open) })
	if err != nil {
		return nil, err
	}
	return &saved{savedFile: e.value, entry: e}, nil
}

func loadSaved(trusted bool, open func() (*snapshot.File, error)) (*savedFile, error) {
	s := &savedFile{}
	var err error
	if s.file, err = open(); err != nil {
		return nil, err
	}
	var extents []machine.Extent
	for _, r := range s.file.Memory() {
		extents = append(extents, machine.Extent{At: r.At, Length: r.Length, File: r.File, Offset: r.Offset})
	}
	newImage := machine.NewImage
	if trusted || s.file.Own() {
		newImage = machine.NewTrustedImage
	}
	if s.image, err = newImage(s.file.Meta().LinearMemory, extents); err != nil {
		return nil, fmt.Errorf("%s: %w", s.file.Path(), errors.Join(err, s.file.Close()))
	}
	var extra baseExtra
	if json.Unmarshal(s.file.Meta().Extra, &extra) == nil { // only bases have it
		_ = s.image.Expect(extra.Written) // an invalid list is only of no use
	}
	return s, nil
}

// forget has the next VM open the file again.
func (s *saved) forget() { s.entry.forget() }

// retain returns another reference; nil for nil. It must be called before this one is closed.
func (s *saved) retain() *saved {
	if s == nil {
		return nil
	}
	return &saved{savedFile: s.savedFile, entry: s.entry.retain()}
}

// close gives up the reference. Calling it twice does no harm.
func (s *saved) close() {
	if s != nil {
		s.once.Do(s.entry.release)
	}
}
