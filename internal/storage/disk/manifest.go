package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"agentvm/internal/host/atomicfile"
)

// A disk is a small file that names its layers, and beside it a directory with them:
//
//	disk.img           "agentvm disk 1\n", a JSON object, "\n", its SHA-256 in hexadecimal, "\n"; zeros may follow
//	disk.img.layers/   a file for each layer, called by its ID
//
// The file is only replaced as a whole. Files in the directory that it does not name were left by a killed process.
const (
	manifestBegin = "agentvm disk 1\n"
	maxManifest   = 64 << 10
	layersSuffix  = ".layers"
	// maxLayers bounds the layers of a disk that is opened; merge keeps their number far smaller.
	maxLayers = 200
)

// layerRef names a layer.
type layerRef struct {
	ID  string `json:"id"`
	Raw bool   `json:"raw,omitempty"` // the file is a disk of a version without layers
}

// manifest names the layers of a disk.
type manifest struct {
	Size   int64      `json:"size"`             // bytes
	Top    string     `json:"top,omitempty"`    // the layer that is written to; none: a disk in a snapshot
	Layers []layerRef `json:"layers,omitempty"` // those below, the newest first
}

func layersDir(path string) string { return path + layersSuffix }

// encode returns the file. Equal manifests have equal bytes, by which decodeManifest finds any change.
func (m manifest) encode() []byte {
	text, _ := json.Marshal(m)
	sum := sha256.Sum256(text)
	return slices.Concat([]byte(manifestBegin), text, []byte("\n"+hex.EncodeToString(sum[:])+"\n"))
}

// decodeManifest is the reverse of encode. Zeros may follow.
func decodeManifest(b []byte) (m manifest, cause string) {
	text, ok := bytes.CutPrefix(b, []byte(manifestBegin))
	if !ok {
		return m, "it does not begin like one"
	}
	text, _, ok = bytes.Cut(text, []byte("\n"))
	if !ok || json.Unmarshal(text, &m) != nil {
		return m, "what it says of itself is cut or changed"
	}
	whole := m.encode()
	if !bytes.HasPrefix(b, whole) || !zero(b[len(whole):]) {
		return m, "what it says of itself has been changed"
	}
	return m, m.wrong()
}

// wrong returns why a manifest cannot be one, or nothing.
func (m manifest) wrong() string {
	if m.Size <= 0 || m.Size > MaxSize || len(m.Layers) > maxLayers || m.Top == "" && len(m.Layers) == 0 {
		return "what it says of itself cannot be"
	}
	seen := map[string]bool{}
	for _, id := range m.ids() {
		if !validID(id) || seen[id] {
			return "it names a layer that cannot be"
		}
		seen[id] = true
	}
	return ""
}

// ids returns the IDs of all layers, the newest first.
func (m manifest) ids() (list []string) {
	if m.Top != "" {
		list = append(list, m.Top)
	}
	for _, l := range m.Layers {
		list = append(list, l.ID)
	}
	return list
}

// readManifest reads the manifest at path. raw reports that the file is not a manifest, and may be a disk without layers. grown reports that
// the file is longer than the disk, which then has the file's size: the user enlarges a disk by making the file longer.
func readManifest(path string) (m manifest, raw, grown bool, err error) {
	file, err := openLayer(path, os.O_RDONLY)
	if err != nil {
		return m, false, false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return m, false, false, err
	}
	if !info.Mode().IsRegular() {
		return m, false, false, &InvalidError{path, "not a regular file"}
	}
	b := make([]byte, min(info.Size(), maxManifest))
	if n, err := file.ReadAt(b, 0); n < len(b) && err != nil && !errors.Is(err, io.EOF) {
		return m, false, false, err
	}
	if !bytes.HasPrefix(b, []byte(manifestBegin)) {
		return m, true, false, nil
	}
	m, cause := decodeManifest(b)
	if cause != "" {
		return m, false, false, &DamagedError{path, cause}
	}
	if info.Size() > m.Size && info.Size() <= MaxSize {
		m.Size, grown = info.Size(), true
	}
	return m, false, grown, nil
}

// stageManifest writes a manifest that is durable and has a temporary name.
func stageManifest(path string, m manifest) (*atomicfile.File, error) {
	f, err := atomicfile.Create(path)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(m.encode()); err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	if err := f.Flush(); err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// publish gives a disk its manifest when what that names is durable, which makeDurable sees to. Each of them waits for the host's disk, so they do
// it at the same time.
func publish(path string, m manifest, makeDurable ...func() error) error {
	var g errgroup.Group
	for _, do := range makeDurable {
		g.Go(do)
	}
	var staged *atomicfile.File
	g.Go(func() (err error) {
		staged, err = stageManifest(path, m)
		return err
	})
	err := g.Wait()
	if staged == nil {
		return err
	}
	if err == nil {
		err = staged.Rename()
	}
	if err = errors.Join(err, staged.Discard()); err != nil {
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(path))
}

// removeUnnamed removes the files in a disk's directory of layers that the manifest does not name. The caller has the disk's lock.
func removeUnnamed(path string, m manifest) {
	atomicfile.RemoveTemporary(path)
	entries, err := os.ReadDir(layersDir(path))
	if err != nil {
		return
	}
	ids := m.ids()
	for _, e := range entries {
		if !slices.Contains(ids, strings.TrimSuffix(e.Name(), sumSuffix)) {
			_ = os.Remove(filepath.Join(layersDir(path), e.Name()))
		}
	}
}

// share puts a layer's file into another directory too: by a hard link where the file system has them, else by a copy. Another file of that
// name is replaced.
func share(from, to string) error {
	err := os.Link(from, to)
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return err
	case !errors.Is(err, fs.ErrExist):
		if _, missing := os.Lstat(to); missing != nil {
			return copyFile(from, to)
		}
	case sameFile(from, to):
		return nil
	}
	staged := to + ".new" // which no manifest names
	if err := os.Remove(staged); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := share(from, staged); err != nil {
		return err
	}
	return os.Rename(staged, to)
}

func sameFile(a, b string) bool {
	one, err := os.Lstat(a)
	if err != nil {
		return false
	}
	other, err := os.Lstat(b)
	return err == nil && os.SameFile(one, other)
}

// copyFile copies a layer for a file system without hard links. The copy is durable, as the original is.
func copyFile(from, to string) error {
	source, err := openLayer(from, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = copyDense(target, source)
	if err == nil {
		err = target.Sync()
	}
	if err = errors.Join(err, target.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// copyDense copies a file without its holes.
func copyDense(to, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	chunk := make([]byte, 16*clusterSize)
	for at := int64(0); at < info.Size(); {
		start, length, err := nextData(from, at)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			start, length = at, info.Size()-at
		case err != nil:
			return err
		case length <= 0:
			start, length = info.Size(), 0
		}
		for at = start; at < start+length; {
			n := min(int64(len(chunk)), start+length-at)
			if err := readFull(from, chunk[:n], at); err != nil {
				return err
			}
			if _, err := to.WriteAt(chunk[:n], at); err != nil {
				return err
			}
			at += n
		}
	}
	return to.Truncate(info.Size())
}

// wrap adds what was being done, and to which disk; nil stays nil.
func wrap(what, path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, path, err)
}
