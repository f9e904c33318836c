package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"agentvm/emulator"
	"agentvm/snapshot"
)

// Saved machines that are in use. VMs of one process that go on from the same file share it, from the first one's start to the
// last one's end.
var savedInUse struct {
	mu    sync.Mutex
	files map[string]*savedFile
}

// savedFile is a machine in a file.
type savedFile struct {
	name  string // in files
	users int    // guarded by savedInUse.mu
	ready chan struct{}
	file  *snapshot.File // set when ready is closed, like image and err
	image *emulator.Image
	err   error

	checked atomic.Bool // its contents have been verified, or somebody does it
}

// saved is a VM's hold on a savedFile.
type saved struct {
	*savedFile
	once sync.Once
}

// acquireSaved returns the saved machine of a name, which open opens when no VM of this process uses it. It is taken as it is when its
// store has made it or its caller vouches for it, else with care (emulator.Program.Restore).
func acquireSaved(name string, trusted bool, open func() (*snapshot.File, error)) (*saved, error) {
	if trusted {
		name += "\x00trusted"
	}
	savedInUse.mu.Lock()
	s, found := savedInUse.files[name]
	if !found {
		s = &savedFile{name: name, ready: make(chan struct{})}
		if savedInUse.files == nil {
			savedInUse.files = make(map[string]*savedFile)
		}
		savedInUse.files[name] = s
	}
	s.users++
	savedInUse.mu.Unlock()
	if !found {
		s.load(trusted, open)
	}
	<-s.ready
	if s.err != nil {
		s.release()
		return nil, s.err
	}
	return &saved{savedFile: s}, nil
}

func (s *savedFile) load(trusted bool, open func() (*snapshot.File, error)) {
	defer close(s.ready)
	if s.file, s.err = open(); s.err != nil {
		return
	}
	var extents []emulator.Extent
	for _, r := range s.file.Memory() {
		extents = append(extents, emulator.Extent{At: r.At, Length: r.Length, File: r.File, Offset: r.Offset})
	}
	newImage := emulator.NewImage
	if trusted || s.file.Own() {
		newImage = emulator.NewOwnImage
	}
	if s.image, s.err = newImage(s.file.Meta().LinearMemory, extents); s.err != nil {
		s.err = fmt.Errorf("%s: %w", s.file.Path(), errors.Join(s.err, s.file.Close()))
		return
	}
	var extra baseExtra
	if json.Unmarshal(s.file.Meta().Extra, &extra) == nil { // other files have nothing of this
		_ = s.image.Expect(extra.Written) // what cannot be is of no use, and does no harm
	}
}

// forget has the next VM open the file anew.
func (s *savedFile) forget() {
	savedInUse.mu.Lock()
	defer savedInUse.mu.Unlock()
	if savedInUse.files[s.name] == s {
		delete(savedInUse.files, s.name)
	}
}

func (s *savedFile) release() {
	savedInUse.mu.Lock()
	s.users--
	last := s.users == 0
	if last && savedInUse.files[s.name] == s {
		delete(savedInUse.files, s.name)
	}
	savedInUse.mu.Unlock()
	if last && s.err == nil {
		_ = s.image.Close()
		_ = s.file.Close()
	}
}

// again returns another hold, while this one is not closed; of none there is none.
func (s *saved) again() *saved {
	if s == nil {
		return nil
	}
	savedInUse.mu.Lock()
	defer savedInUse.mu.Unlock()
	s.users++
	return &saved{savedFile: s.savedFile}
}

// close gives up the hold. A second time does no harm.
func (s *saved) close() {
	if s != nil {
		s.once.Do(s.release)
	}
}
