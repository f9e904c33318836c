package disk

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"

	"agentvm/internal/host/atomicfile"
)

// A layer below the top never changes, so that it is hashed once: ID.sum beside it has the hash in hexadecimal, and a newline, and is shared with
// the layer. The hash is the SHA-256 of each cluster of the file that is not zeros, behind its number in eight bytes, so that holes do not
// count.
const (
	sumSuffix = ".sum"
	sumLength = 2*sha256.Size + 1 // bytes of the file
)

// Hash makes the hashes of the layers that have none. It reads these layers.
func (f *Frozen) Hash(ctx context.Context) error {
	for _, l := range f.stack {
		if _, err := os.Lstat(l.path + sumSuffix); err == nil {
			continue
		}
		sum, err := sumLayer(ctx, l.file)
		if err == nil {
			err = atomicfile.Write(l.path+sumSuffix, []byte(sum+"\n"))
		}
		if err != nil {
			return wrap("hash disk", f.path, err)
		}
	}
	return nil
}

// Hashed reports whether all layers have hashes.
func (f *Frozen) Hashed() bool {
	for _, l := range f.stack {
		if _, err := os.Lstat(l.path + sumSuffix); err != nil {
			return false
		}
	}
	return true
}

// Verify compares the layers with their hashes, those that have one: see Hashed.
func (f *Frozen) Verify(ctx context.Context) error {
	for _, l := range f.stack {
		want, err := os.ReadFile(l.path + sumSuffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && len(want) != sumLength {
			err = &DamagedError{l.path + sumSuffix, "it is no hash"}
		}
		var is string
		if err == nil {
			is, err = sumLayer(ctx, l.file)
		}
		if err != nil {
			return wrap("verify disk", f.path, err)
		}
		if is+"\n" != string(want) {
			return &DamagedError{l.path, "its contents are not those that were saved"}
		}
	}
	return nil
}

// sumLayer hashes a layer's file.
func sumLayer(ctx context.Context, file *os.File) (string, error) {
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	hash, p := sha256.New(), make([]byte, clusterSize)
	for at := int64(0); at < info.Size(); {
		start, length, err := nextData(file, at)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			start, length = at, info.Size()-at
		case err != nil:
			return "", err
		case length <= 0:
			return hex.EncodeToString(hash.Sum(nil)), nil
		}
		end := start + length
		for at = max(at, start/clusterSize*clusterSize); at < end; at += clusterSize {
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			n := min(clusterSize, info.Size()-at)
			clear(p[n:])
			if err := readFull(file, p[:n], at); err != nil {
				return "", err
			}
			if !zero(p) {
				hash.Write(binary.BigEndian.AppendUint64(nil, uint64(at/clusterSize)))
				hash.Write(p)
			}
		}
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// shareLayer puts a layer, with its hash if it has one, into another disk's directory.
func shareLayer(from, to string) error {
	if err := share(from, to); err != nil {
		return err
	}
	if err := share(from+sumSuffix, to+sumSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
