package vm

import (
	"errors"
	"fmt"
	"sync/atomic"

	"agentvm/disk"
	"agentvm/emulator"
	"agentvm/wasi"
)

// upper is the VM's writable disk, vdb. The guest's supervisor lays it over the image when it is there.
//
//	disk.Open ── locked ──► attached to the machine ──► machine closed ──► synced, closed, unlocked
//
// A machine that is to become a base has the disk as zeros that nobody can write until it was captured: the guest is asked not to
// touch it (upperLate), and could have nothing of it in its memory if it did.
type upper struct {
	*disk.Disk
	absent atomic.Bool
}

// Words of the kernel's command line: where the guest has its writable layer.
const (
	upperArgument = "agentvm.upper="
	upperLate     = upperArgument + "late" // the disk, from the first start on that says that the machine was saved
)

var errAbsent = errors.New("the disk is not there yet")

// ReadAt reads the disk, or zeros while it is absent.
func (u *upper) ReadAt(p []byte, at int64) (int, error) {
	if u.absent.Load() {
		clear(p)
		return len(p), nil
	}
	return u.Disk.ReadAt(p, at)
}

// WriteAt writes to the disk.
func (u *upper) WriteAt(p []byte, at int64) (int, error) {
	if u.absent.Load() {
		return 0, errAbsent
	}
	return u.Disk.WriteAt(p, at)
}

// present has the machine see the disk.
func (u *upper) present() {
	if u != nil {
		u.absent.Store(false)
	}
}

// size is that of the disk in bytes; 0 when there is none.
func (u *upper) size() int64 {
	if u == nil {
		return 0
	}
	return u.Size()
}

// openUpper opens the disk at path; without one there is none.
func openUpper(path string) (*upper, error) {
	if path == "" {
		return nil, nil
	}
	d, err := disk.Open(path)
	var used *disk.InUseError
	if errors.As(err, &used) {
		return nil, err // it says all
	}
	if err != nil {
		return nil, fmt.Errorf("writable disk %s: %w", path, err)
	}
	return &upper{Disk: d}, nil
}

// attach gives the machine the disk.
func (u *upper) attach(c *emulator.Config) {
	if u == nil {
		return
	}
	c.Disks = append(c.Disks, emulator.Disk{File: wasi.NewDisk(u, u.Size(), false)})
}

// Close makes durable what the guest has written and unlocks the disk. A second time does no harm.
func (u *upper) Close() error {
	if u == nil {
		return nil
	}
	_ = u.Sync() // after Close it fails
	return u.Disk.Close()
}
