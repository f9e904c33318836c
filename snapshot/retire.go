package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A base that is of no use may be needed all the same, by snapshots that are layered on it and find it by its ID. It then gives up its
// name, and with that nobody starts from it any more: KEY.ID.snap, with the first digits of its ID.
const retiredDigits = 16

// RemoveBase deletes the base of a key, which is of no use: the one that was opened as bad, or when bad is nil one that cannot be opened.
// Nothing happens when there is another one now. When snapshots are layered on it, it is kept for them, under another name, until
// Collect finds that there are none any more; their names are returned, for what is wrong with it is wrong with them.
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

// isStill says whether the base of a key is the bad one, or when that is nil one that cannot be opened and will never be.
func (s *Store) isStill(key string, bad *File) bool {
	f, err := s.Base(key)
	if err == nil {
		defer f.Close()
		return bad != nil && f.sum == bad.sum && os.SameFile(f.info, bad.info) // a number of a file is used again, and an ID may be copied
	}
	e := Entry{Err: err}
	return bad == nil && !errors.Is(err, fs.ErrNotExist) && (errors.Is(err, ErrStranger) || !e.unreadable())
}

// retire takes the name from a base, and seals it under its new one.
func (s *Store) retire(path string) error {
	page, err := peek(path)
	if err != nil {
		return err
	}
	to := strings.TrimSuffix(path, Suffix) + "." + id(page)[:retiredDigits] + Suffix
	if key := readKey(path); key != nil {
		if seal := sealOf(key, digest(page[sumAt:])); sealed(path, seal) {
			err = writePrivate(sealPath(to), seal)
		}
	}
	if err == nil {
		err = os.Rename(path, to)
	}
	if err != nil {
		unsealNothing(to)
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

// retired says whether an entry of the bases is one that has given up its name.
func (e *Entry) retired() bool {
	return strings.ContainsRune(e.Name, '.') && filepath.Base(filepath.Dir(e.Path)) == basesName
}
