package translations

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/lockfile"
)

// Save keeps pieces, which are the store's from now on. When that fails once, this store keeps nothing more.
func (s *Store) Save(pieces map[[sha256.Size]byte][]byte) {
	if s.broken.Load() || len(pieces) == 0 {
		return
	}
	if room, err := s.room(s.config.Dir); err == nil && room < leastRoom {
		s.config.Logger.Debug("translated code is not kept: the disk is nearly full", "room", room)
		return
	}
	if err := s.save(pieces); err != nil && !s.broken.Swap(true) {
		s.config.Logger.Debug("no more translated code is kept", "error", err)
	}
}

func (s *Store) save(pieces map[[sha256.Size]byte][]byte) error {
	key, err := s.key()
	if err != nil {
		return err
	}
	seal := seal{key, s.build}
	for name, piece := range pieces {
		if len(piece) == 0 || len(piece) > maxPiece-pieceHeader {
			delete(pieces, name)
		}
	}
	name := fmt.Sprintf("%s%016x-%.8s%s", s.prefix(), time.Now().UnixNano(), strings.ToLower(rand.Text()), packSuffix)
	path := filepath.Join(s.config.Dir, name)
	lock, err := lockfile.Try(filepath.Join(s.config.Dir, ".lock"))
	if errors.Is(err, lockfile.ErrHeld) { // another process tidies
		return writePack(path, seal, pieces)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	merged, err := s.merge(seal, pieces)
	if err != nil {
		return err
	}
	if err := writePack(path, seal, pieces); err != nil {
		return err
	}
	for _, path := range merged {
		_ = os.Remove(path) // on Windows: in use, and merged again the next time
	}
	return s.bound(name)
}

// merge adds the pieces of packs that are no larger than twice all that is smaller, and returns the packs. What is newer stays.
func (s *Store) merge(seal seal, pieces map[[sha256.Size]byte][]byte) (merged []string, err error) {
	files, err := packFiles(s.config.Dir, s.prefix())
	if err != nil {
		return nil, err
	}
	total := int64(0)
	for _, piece := range pieces {
		total += int64(len(piece))
	}
	taken := make([]bool, len(files))
	for range files {
		smallest := -1
		for i, f := range files {
			if !taken[i] && (smallest < 0 || f.size < files[smallest].size) {
				smallest = i
			}
		}
		size := files[smallest].size
		if size > 2*total || total+size > maxMerged {
			break
		}
		taken[smallest], total = true, total+size
	}
	for i := len(files) - 1; i >= 0; i-- { // the newest first
		path := filepath.Join(s.config.Dir, files[i].name)
		if taken[i] && addPack(path, seal, pieces) {
			merged = append(merged, path)
		}
	}
	return merged, nil
}

// addPack adds the pieces of a pack that are not there yet, as far as they are what was written, and says whether the pack can be removed.
func addPack(path string, seal seal, pieces map[[sha256.Size]byte][]byte) bool {
	p, f, err := openPack(path, seal)
	if err != nil {
		return errors.Is(err, errForged)
	}
	defer f.Close()
	for _, at := range p.index {
		name, contents, err := readPiece(f, maxFile, seal, at)
		if err == nil && pieces[name] == nil && len(pieces) < maxPieces {
			pieces[name] = contents
		}
	}
	return true
}

// bound removes what killed processes have left, and the packs that were not used for the longest time while all are too large; never the one that was
// just written.
func (s *Store) bound(written string) error {
	atomicfile.RemoveAllTemporary(s.config.Dir)
	files, err := packFiles(s.config.Dir, "")
	if err != nil {
		return err
	}
	total := int64(0)
	for _, f := range files {
		total += f.size
	}
	for total > s.config.Limit {
		oldest := -1
		for i, f := range files {
			if f.name != written && (oldest < 0 || f.changed.Before(files[oldest].changed)) {
				oldest = i
			}
		}
		if oldest < 0 {
			break
		}
		_ = os.Remove(filepath.Join(s.config.Dir, files[oldest].name)) // on Windows it may be in use
		total -= files[oldest].size
		files = append(files[:oldest], files[oldest+1:]...)
	}
	return nil
}
