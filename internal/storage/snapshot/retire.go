package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentvm/internal/host/atomicfile"
)

// Snapshots may need a base from which no VM should start any more, because they are layered on it and find it by its ID. Such a base
// gets another name: KEY.ID.snap, with the first digits of its ID.
const retiredDigits = 16

// RemoveBase deletes the base of a key: the one that was opened as bad, or, when bad is nil, one that cannot be opened. It does nothing
// when there is another one now. When snapshots are layered on the base, it is kept for them under another name until Collect finds none
// any more. Their names are returned, because they have the same fault.
func (s *Store) RemoveBase(ctx context.Context, key string, bad *File) (needed []string, err error) {
	path, err := s.basePath(key)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, fmt.Errorf("remove the base %s: %w", key, err)
	}
	defer unlock()
	if !s.isStill(key, bad) {
		return nil, nil
	}
	needed = layeredOn(path)
	if len(needed) > 0 {
		err = s.retire(path)
	} else {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return needed, fmt.Errorf("remove a base: %w", err)
	}
	unseal(path)
	return needed, nil
}

// isStill reports whether the base of a key is the bad one, or, when bad is nil, one that can never be opened.
func (s *Store) isStill(key string, bad *File) bool {
	f, err := s.Base(key)
	if err == nil {
		defer f.Close()
		return bad != nil && f.sum == bad.sum && os.SameFile(f.info, bad.info) // neither is enough alone: systems reuse file numbers, and a copy has the same ID
	}
	e := Entry{Err: err}
	return bad == nil && !errors.Is(err, fs.ErrNotExist) && (errors.Is(err, ErrUntrusted) || !e.unreadable())
}

// retire renames a base, and seals it under its new name.
func (s *Store) retire(path string) error {
	page, err := peek(path)
	if err != nil {
		return err
	}
	to := strings.TrimSuffix(path, Suffix) + "." + id(page)[:retiredDigits] + Suffix
	if key := readKey(path); key != nil {
		if seal := sealOf(key, digest(page[sumAt:])); sealed(path, seal) {
			err = writePrivate(sealPath(to), seal, true)
		}
	}
	if err == nil {
		err = os.Rename(path, to)
	}
	if err != nil {
		unsealNothing(to)
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(path))
}

// retired reports whether an entry is a base that retire has renamed.
func (e *Entry) retired() bool {
	return strings.ContainsRune(e.Name, '.') && filepath.Base(filepath.Dir(e.Path)) == basesName
}
