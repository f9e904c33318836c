package mount

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	maxMade  = 4096 // repositories that are remembered as the guest's own
	maxHeld  = 64   // of them, by an open descriptor
	maxTold  = 8    // paths
	maxNoted = 64   // paths of instructions
)

// Guard is what the mounts of one VM have in common: which of git's repositories the guest has made, by whichever mount, and what the user is to
// learn at the end of a command. It is safe for concurrent use and must be closed.
type Guard struct {
	mu      sync.Mutex
	made    map[identity]madeFile
	held    int
	told    map[string]bool
	written []WrittenFile
	log     *slog.Logger
}

// NewGuard makes the guard of one VM. A nil logger discards.
func NewGuard(log *slog.Logger) *Guard {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Guard{made: make(map[identity]madeFile), told: make(map[string]bool), log: log}
}

// madeFile is a file or directory that the guest has made. A host gives the number of an inode to another file when it is free again, so there is
// more than that: the time of its birth, and an open descriptor, as long as there are few, with which the number is not free.
type madeFile struct {
	born int64 // nanoseconds since 1970; 0: the file system does not keep it
	held *os.File
}

// Close gives the descriptors back, and reports the instructions for agents that the guest has written. A nil Guard has none.
func (g *Guard) Close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.made {
		m.held.Close() // of a nil file it is an error of no interest
	}
	clear(g.made)
	g.held = 0
	if len(g.written) > 0 {
		var paths []string
		for _, w := range g.written {
			paths = append(paths, w.Path)
		}
		g.log.Warn("the guest has written instructions that agents follow: read them before one does", "paths", strings.Join(paths, " "))
		g.written = nil
	}
	return nil
}

// hasMade says whether the guest has made a file.
func (g *Guard) hasMade(file identity, born func() int64) bool {
	g.mu.Lock()
	m, found := g.made[file]
	g.mu.Unlock()
	if !found {
		return false
	}
	return m.held != nil && m.born == 0 || m.born != 0 && m.born == born()
}

// noteMade notes what the guest has made. Where there is neither a birth time nor a descriptor it is not: then it counts as the host's.
func (g *Guard) noteMade(file identity, born int64, hold func() *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.made) >= maxMade || g.held >= maxHeld {
		g.dropRemovedLocked()
	}
	if _, found := g.made[file]; found {
		g.forgetLocked(file)
	}
	m := madeFile{born: born}
	if g.held < maxHeld {
		m.held = hold()
	}
	if len(g.made) >= maxMade || m.born == 0 && m.held == nil {
		m.held.Close()
		return
	}
	if m.held != nil {
		g.held++
	}
	g.made[file] = m
}

// dropRemovedLocked forgets what has no name any more.
func (g *Guard) dropRemovedLocked() {
	for file, m := range g.made {
		if m.held == nil {
			continue
		}
		if info, err := m.held.Stat(); err != nil || hostStat(info, "").Links == 0 {
			g.forgetLocked(file)
		}
	}
}

// forgetMade forgets what is removed.
func (g *Guard) forgetMade(file identity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgetLocked(file)
}

func (g *Guard) forgetLocked(file identity) {
	if m := g.made[file]; m.held != nil {
		m.held.Close()
		g.held--
	}
	delete(g.made, file)
}

// tell says whether a refusal is to be reported: the first of each path, up to a limit.
func (g *Guard) tell(path string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.told) >= maxTold || g.told[path] {
		return false
	}
	g.told[path] = true
	return true
}

// WrittenFile is a file of the host that the guest has written, or opened for writing, and when it did so last.
type WrittenFile struct {
	Path string    `json:"path"`
	At   time.Time `json:"at"`
}

// noteWritten notes a file with instructions for agents that the guest writes.
func (g *Guard) noteWritten(path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if i := slices.IndexFunc(g.written, func(w WrittenFile) bool { return w.Path == path }); i >= 0 {
		g.written[i].At = now
	} else if len(g.written) < maxNoted {
		g.written = append(g.written, WrittenFile{path, now})
	}
}

// Instructions are the files below a directory of the host with instructions for agents that the guest has written. A nil Guard has none.
func (g *Guard) Instructions(dir string) (list []WrittenFile) {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	prefix := strings.TrimSuffix(filepath.ToSlash(dir), "/") + "/"
	for _, w := range g.written {
		if strings.HasPrefix(w.Path, prefix) {
			list = append(list, w)
		}
	}
	return list
}
