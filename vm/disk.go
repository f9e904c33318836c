package vm

import (
	"errors"
	"fmt"

	"agentvm/disk"
	"agentvm/emulator"
	"agentvm/wasi"
)

// upper is the VM's writable disk, vdb. The guest's supervisor lays it over the image when it is there.
//
//	disk.Open ── locked ──► attached to the machine ──► machine closed ──► synced, closed, unlocked
type upper struct{ *disk.Disk }

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
	return &upper{d}, nil
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
