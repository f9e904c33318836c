package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/storage/disk"
)

// paths.disk is where the VM's files are. Once the VM has run with a disk, a missing one is a loss, and not the beginning.

// makeDisk makes the VM's disk unless there is one, or has been one. The disk gets its name when it is complete; this process holds the VM's lock.
func (p paths) makeDisk(size int64) error {
	if _, err := os.Lstat(p.disk()); errors.Is(err, fs.ErrNotExist) && p.hadDisk() {
		if d, err := disk.Open(p.disk()); err == nil { // a disk of an earlier version, whose conversion was interrupted
			return d.Close()
		}
		return fmt.Errorf("the VM's disk %s is missing, and with it its files: put it back, with the folder %[1]s.layers, or remove the VM (agentvm rm %s)",
			p.disk(), filepath.Base(p.dir))
	}
	if err := disk.Create(p.disk(), size); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// hadDisk reports whether the VM has run with a disk. Earlier versions did not note it, and left the disk's lock.
func (p paths) hadDisk() bool {
	for _, trace := range []string{p.diskMade(), p.disk() + ".lock"} {
		if _, err := os.Lstat(trace); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// noteDisk notes that the VM runs with a disk.
func (p paths) noteDisk() error {
	if _, err := os.Lstat(p.diskMade()); err == nil {
		return nil
	}
	if err := atomicfile.Write(p.diskMade(), nil); err != nil {
		return fmt.Errorf("note that the VM has a disk: %w", err)
	}
	return nil
}
