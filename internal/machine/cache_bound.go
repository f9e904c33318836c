package machine

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentvm/internal/host/atomicfile"
)

// Bounds of a folder of compiled code. wazero has a file written there for each module and removes none; it knows what it needs again by names
// that say nothing to us.
const keepModules = 32 // the newest: builds of the machine, of 420 KiB, or modules of users

// boundCache removes what was written first from a folder of compiled code, and what versions before this one have left beside it: a profile of
// hot code, and compiled code without a key. What is removed and needed is compiled again, and is the newest then. Other processes may do
// the same at the same time, read and write: files appear in the folder whole, and a file that is gone was not there.
func boundCache(folder string) error {
	var failed error
	for _, pattern := range []string{"profile-*", ".profile-*", "wazero-*"} {
		names, _ := filepath.Glob(filepath.Join(filepath.Dir(folder), pattern)) // the pattern is right
		for _, name := range names {
			failed = errors.Join(failed, os.RemoveAll(name))
		}
	}
	files, err := cacheFiles(folder)
	if err != nil {
		return errors.Join(failed, err)
	}
	slices.SortFunc(files, func(a, b cacheFile) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.path, b.path)) })
	for ; len(files) > keepModules; files = files[1:] {
		if err := os.Remove(files[0].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err) // on Windows: in use
		}
	}
	return failed
}

// PruneCache removes the compiled code in a folder, [Config.CacheDir], which is made again when it is needed, and returns
// how many files that are, and their bytes. With dryRun it only counts. Processes that use the folder at the same time continue.
func PruneCache(dir string, dryRun bool) (files int, bytes int64, err error) {
	folders, err := filepath.Glob(filepath.Join(dir, "code-*")) // one for each version of the form
	if err != nil {
		return 0, 0, err
	}
	for _, folder := range folders {
		in, failed := cacheFiles(folder)
		err = errors.Join(err, failed)
		for _, f := range in {
			if !dryRun {
				if removed := os.Remove(f.path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
					err = errors.Join(err, removed) // on Windows: in use
					continue
				}
			}
			files, bytes = files+1, bytes+f.size
		}
	}
	return files, bytes, err
}

type cacheFile struct {
	path string
	size int64
	at   time.Time
}

// cacheFiles lists the finished files of a folder, and removes those of killed processes.
func cacheFiles(folder string) ([]cacheFile, error) {
	atomicfile.RemoveAllTemporary(folder)
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
		if !atomicfile.IsTemporary(e.Name()) {
			files = append(files, cacheFile{filepath.Join(folder, e.Name()), info.Size(), info.ModTime()})
		}
	}
	return files, nil
}
