package machine

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentvm/internal/atomicfile"
)

// Bounds of the folder of compiled code. wazero has a file written there for each module and removes none; it knows what it
// needs again by names that say nothing to us. The machine's own module (420 KiB) is large and few others are; regions are small and many:
// the longest that were seen, of 3000 instructions, have 276 KiB.
const (
	largeModule    = 320 << 10 // bytes
	keepLarge      = 8         // builds of the machine
	keepSmallBytes = 64 << 20  // of regions, sizes rounded up to blocks
	fileBlock      = 4096
	// strayAge is the age at which a file that a process was writing is abandoned.
	strayAge = time.Hour
	// foreignAge is the age at which a file that another version has written, in another form, is abandoned.
	foreignAge = 30 * 24 * time.Hour
)

// boundCache removes from a folder of compiled code what was written first, until the rest is within the bounds. What is removed is
// compiled again where it is needed, and is the newest then. Other processes may do the same at the same time, read and write:
// files appear in the folder whole, and a file that is gone was not there.
func boundCache(dir string, now time.Time) error {
	folders, err := filepath.Glob(filepath.Join(dir, "code-*")) // one for each version of the form
	if err != nil {
		return err
	}
	sweepProfiles(dir, now)
	sweepFolders(dir, now)
	var large, small []cacheFile
	for _, folder := range folders {
		files, err := cacheFiles(folder, now)
		if err != nil {
			return err
		}
		for _, f := range files {
			if f.size >= largeModule {
				large = append(large, f)
			} else {
				small = append(small, f)
			}
		}
	}
	return errors.Join(
		removeOldest(large, func(n int, _ int64) bool { return n > keepLarge }),
		removeOldest(small, func(_ int, bytes int64) bool { return bytes > keepSmallBytes }),
	)
}

// PruneCache removes the compiled code and the profile in a folder, [Config.CacheDir], which are made again when they are needed, and returns
// how many files that are, and their bytes. With dryRun it only counts. Processes that use the folder at the same time continue.
func PruneCache(dir string, dryRun bool) (files int, bytes int64, err error) {
	folders, err := filepath.Glob(filepath.Join(dir, "code-*"))
	if err != nil {
		return 0, 0, err
	}
	now := time.Now()
	var list []cacheFile
	for _, folder := range folders {
		in, err := cacheFiles(folder, now)
		if err != nil {
			return 0, 0, err
		}
		list = append(list, in...)
	}
	profile := filepath.Join(dir, profileName)
	if info, err := os.Lstat(profile); err == nil {
		list = append(list, cacheFile{profile, info.Size(), info.ModTime()})
	}
	for _, f := range list {
		if !dryRun {
			if removed := os.Remove(f.path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
				err = errors.Join(err, removed) // on Windows: in use
				continue
			}
		}
		files, bytes = files+1, bytes+f.size
	}
	return files, bytes, err
}

// sweepProfiles removes profiles that no process will read: those of processes that were killed while they wrote, and of versions
// that are no longer used.
func sweepProfiles(dir string, now time.Time) {
	names, _ := filepath.Glob(filepath.Join(dir, "profile-*")) // the pattern is right
	unfinished, _ := filepath.Glob(filepath.Join(dir, ".profile-*"))
	for _, name := range append(names, unfinished...) {
		info, err := os.Lstat(name)
		if err != nil || filepath.Base(name) == profileName {
			continue
		}
		age := now.Sub(info.ModTime())
		if age > foreignAge || atomicfile.IsTemporary(filepath.Base(name)) && age > strayAge {
			_ = os.Remove(name)
		}
	}
}

// sweepFolders removes compiled code that no version reads any more: as wazero itself wrote it, without a key.
func sweepFolders(dir string, now time.Time) {
	names, _ := filepath.Glob(filepath.Join(dir, "wazero-*")) // the pattern is right
	for _, name := range names {
		if info, err := os.Lstat(name); err == nil && now.Sub(info.ModTime()) > foreignAge {
			_ = os.RemoveAll(name)
		}
	}
}

type cacheFile struct {
	path string
	size int64
	at   time.Time
}

// cacheFiles lists the finished files of a folder, and removes those that no process will finish.
func cacheFiles(folder string, now time.Time) ([]cacheFile, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var files []cacheFile
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // removed meanwhile, or none of ours
		}
		path := filepath.Join(folder, e.Name())
		switch {
		case !atomicfile.IsTemporary(e.Name()):
			files = append(files, cacheFile{path, (info.Size() + fileBlock - 1) / fileBlock * fileBlock, info.ModTime()})
		case now.Sub(info.ModTime()) > strayAge:
			_ = os.Remove(path)
		}
	}
	return files, nil
}

// removeOldest removes files as long as there are too many, of so many bytes.
func removeOldest(files []cacheFile, tooMany func(n int, bytes int64) bool) error {
	slices.SortFunc(files, func(a, b cacheFile) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.path, b.path)) })
	var bytes int64
	for _, f := range files {
		bytes += f.size
	}
	var failed error
	for ; len(files) > 0 && tooMany(len(files), bytes); files = files[1:] {
		if err := os.Remove(files[0].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err) // on Windows: in use
			continue
		}
		bytes -= files[0].size
	}
	return failed
}
