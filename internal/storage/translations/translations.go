// Package translations keeps translated code of machines between processes, in packs: files in one folder of the store, of mode 0700.
//
//	FOLDER/BUILD-TIME-RANDOM.pack   pieces of one build of the program, see pack.go
//	FOLDER/.lock                    held by who merges and removes packs
//
// A pack appears whole and never changes, except for its time of change, which says when a process has used it last. Nothing waits for the disk: what a
// crash cuts short has no right HMAC, and is removed like everything else that has none. Whoever saves pieces merges packs of up to twice their size with
// them, so that there are few, and removes those that were not used for the longest time when all take more than the bound.
//
// Whatever fails, pieces are not found or not kept: the guest's code is translated again. A Store is safe for concurrent use, and so is its folder for
// several processes.
package translations

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// Folder is the name of the folder in a store.
const Folder = "translations"

const (
	maxBytes   = 128 << 20 // of all packs, those of other builds too
	maxMerged  = 8 << 20   // larger packs stay as they are
	leastRoom  = 256 << 20 // that others keep on the disk: it is theirs before it is a cache's
	maxRead    = 32        // packs that are looked into, the newest
	listedFor  = 10 * time.Second
	usedFor    = time.Hour // how exact the time of the last use is
	packSuffix = ".pack"
)

// Config says where pieces are kept.
type Config struct {
	// Dir is the folder. It is made, if the one that it is in is there.
	Dir string
	// Key returns the key of the HMACs, nil when there is none. It is called when something is looked for or saved, not before.
	Key func() []byte
	// Build tells builds of the program apart: each finds its own pieces alone.
	Build string
	// Limit bounds all packs, in bytes. 0 is 128 MiB.
	Limit int64
	// Logger learns why pieces are not kept. Nil discards.
	Logger *slog.Logger
}

// Store is a folder of packs, for one build of the program.
type Store struct {
	config Config
	build  [sha256.Size]byte
	broken atomic.Bool // nothing more is saved
	room   func(dir string) (uint64, error)

	listing sync.Mutex // held by who lists the folder
	listed  atomic.Pointer[list]
}

// list is what a store knows of its folder. It does not change.
type list struct {
	packs []*pack // the newest first
	seal  seal
	at    time.Time
}

// Open makes the folder. It reads nothing yet.
func Open(c Config) *Store {
	c.Limit = cmp.Or(c.Limit, maxBytes)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	_ = os.Mkdir(c.Dir, 0o700) // whoever uses it sees the error
	return &Store{config: c, build: sha256.Sum256([]byte(c.Build)), room: available}
}

// prefix is what names of this build's packs begin with.
func (s *Store) prefix() string { return hex.EncodeToString(s.build[:8]) + "-" }

// Load returns the newest piece of a name, nil when there is none.
func (s *Store) Load(name [sha256.Size]byte) []byte {
	l := s.listed.Load()
	if l == nil {
		piece, _ := s.find(s.list(nil), name)
		return piece
	}
	piece, removed := s.find(l, name)
	if piece == nil && (removed || time.Since(l.at) > listedFor) {
		piece, _ = s.find(s.list(l), name)
	}
	return piece
}

// find looks for a piece, and says whether a pack that may have had it was removed, perhaps merged.
func (s *Store) find(l *list, name [sha256.Size]byte) (piece []byte, removed bool) {
	for _, p := range l.packs {
		piece, err := p.piece(l.seal, name)
		if errors.Is(err, errForged) {
			s.remove(p.path)
		}
		removed = removed || errors.Is(err, fs.ErrNotExist)
		if piece == nil {
			continue
		}
		if !p.used.Swap(true) && time.Since(p.changed) > usedFor {
			p.markUsed()
		}
		return piece, false
	}
	return nil, removed
}

// remove removes a pack that is not what was written.
func (s *Store) remove(path string) {
	s.config.Logger.Debug("kept translated code is not what was written", "file", path)
	_ = os.Remove(path)
}

// list looks which packs there are, unless another goroutine did since old was read.
func (s *Store) list(old *list) *list {
	s.listing.Lock()
	defer s.listing.Unlock()
	if now := s.listed.Load(); now != old {
		return now
	}
	fresh := &list{at: time.Now()}
	if key, err := s.key(); err != nil {
		s.config.Logger.Debug("no translated code is kept", "error", err)
	} else {
		fresh.seal = seal{key, s.build}
		fresh.packs = s.open(fresh.seal, old)
	}
	s.listed.Store(fresh)
	return fresh
}

var errNoKey = errors.New("the store has no key")

// key checks the folder and reads the key.
func (s *Store) key() ([]byte, error) {
	if err := private.CheckFolder(s.config.Dir); err != nil {
		return nil, err
	}
	key := s.config.Key()
	if key == nil {
		return nil, errNoKey
	}
	return key, nil
}

// open reads the indexes of this build's packs, except those that old has.
func (s *Store) open(seal seal, old *list) (packs []*pack) {
	files, _ := packFiles(s.config.Dir, s.prefix())
	for _, f := range files[max(len(files)-maxRead, 0):] {
		path := filepath.Join(s.config.Dir, f.name)
		p := old.pack(path)
		if p == nil {
			var file *os.File
			var err error
			if p, file, err = openPack(path, seal); errors.Is(err, errForged) {
				s.remove(path)
			}
			if err != nil {
				continue
			}
			_ = file.Close() // it was only read
		}
		packs = append(packs, p)
	}
	slices.Reverse(packs)
	return packs
}

// pack finds a pack by its path.
func (l *list) pack(path string) *pack {
	if l == nil {
		return nil
	}
	for _, p := range l.packs {
		if p.path == path {
			return p
		}
	}
	return nil
}

// Prune removes the packs of all builds in a folder, and returns how many there were, and their bytes. With dryRun it only counts. Processes that use
// the folder continue.
func Prune(dir string, dryRun bool) (files int, bytes int64, err error) {
	list, err := packFiles(dir, "")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	for _, f := range list {
		if !dryRun {
			if failed := os.Remove(filepath.Join(dir, f.name)); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
				err = errors.Join(err, failed)
				continue
			}
		}
		files, bytes = files+1, bytes+f.size
	}
	return files, bytes, err
}

type packFile struct {
	name    string
	size    int64
	changed time.Time
}

// packFiles lists the packs in a folder whose names begin with a prefix, by name: of one build, the oldest first.
func packFiles(dir, prefix string) (list []packFile, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !strings.HasSuffix(e.Name(), packSuffix) || atomicfile.IsTemporary(e.Name()) {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() { // else removed meanwhile, or none of ours
			list = append(list, packFile{e.Name(), info.Size(), info.ModTime()})
		}
	}
	return list, err
}
