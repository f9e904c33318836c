package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentvm/internal/host/atomicfile"
)

// A disk of a version without layers is a sparse file with the file system. When it is opened it becomes, unchanged, the lowest layer of a
// disk:
//
//	link or rename to .layers/ID.raw ─► top ─► manifest in its place ─► ID.raw gets its name, which the manifest knows
//
// The file always has a name. Without hard links it has for a moment only the second one, from which restoreRaw renames it back.
const rawSuffix = ".raw"

// adoptRaw makes a disk with layers of one without.
func adoptRaw(path string) (manifest, error) {
	size, err := checkRaw(path)
	if err != nil {
		return manifest{}, err
	}
	dir := layersDir(path)
	if err := os.RemoveAll(dir); err != nil { // left by an interrupted adoption; the file still has its own name
		return manifest{}, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return manifest{}, err
	}
	m := manifest{Size: size, Top: newID(), Layers: []layerRef{{ID: newID(), Raw: true}}}
	top, err := createLayer(dir, m.Top, size)
	if err != nil {
		return m, err
	}
	if err := top.release(); err != nil {
		return m, err
	}
	below := filepath.Join(dir, m.Layers[0].ID)
	if err := os.Link(path, below); err != nil {
		if err = os.Rename(path, below+rawSuffix); err == nil {
			err = os.Rename(below+rawSuffix, below)
		}
		if err != nil {
			return m, errors.Join(err, restoreRaw(path))
		}
	}
	if err := atomicfile.SyncFolder(dir); err != nil {
		return m, err
	}
	if err := atomicfile.Write(path, m.encode()); err != nil {
		return m, errors.Join(err, restoreRaw(path))
	}
	return m, nil
}

// checkRaw returns the size of a file that is a file system.
func checkRaw(path string) (int64, error) {
	file, err := openLayer(path, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	begin := make([]byte, superblockAt+superblockSize)
	n, _ := file.ReadAt(begin, 0)
	if cause := wrong(begin[:n], info.Size()); cause != "" {
		return 0, &InvalidError{path, cause}
	}
	if info.Size() > MaxSize {
		return 0, &InvalidError{path, "it is larger than a disk can be"}
	}
	return info.Size(), nil
}

// restoreRaw renames a file without layers back to path after an interrupted adoption. It fails with fs.ErrNotExist when there is no such
// file.
func restoreRaw(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(layersDir(path))
	if err != nil {
		return err
	}
	for _, e := range entries {
		from := filepath.Join(layersDir(path), e.Name())
		if !validID(strings.TrimSuffix(e.Name(), rawSuffix)) {
			continue
		}
		if _, err := checkRaw(from); err == nil { // layers with a map do not begin like that
			return os.Rename(from, path)
		}
	}
	return fs.ErrNotExist
}
