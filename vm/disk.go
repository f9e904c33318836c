package vm

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentvm/internal/storage/disk"
)

// overlayDisk is the VM's writable disk, vdb. The guest's supervisor mounts it as an overlay on the image.
//
//	disk.Open ── locked ──► attached to the machine ──► machine closed ──► synced, closed, unlocked
//
// Until a machine that becomes a base is captured, the disk is absent: it reads as zeros and refuses writes. The guest is asked not to
// touch it (overlayDeferred), and if it does, no contents of the disk get into the base.
//
// While the host has no room for what the guest writes, the guest waits as for a slow disk. The write is tried again each roomTime.
type overlayDisk struct {
	*disk.Disk
	absent atomic.Bool
	logger *slog.Logger

	mu     sync.Mutex
	notify func()    // has the machine try again; nil: there is no machine
	full   time.Time // since when the host has no room; zero: it has
	timer  *time.Timer
}

// roomTime is how long a write waits for room on the host before it is tried again.
const roomTime = 500 * time.Millisecond

// Attach sets the function that has the machine try again, see wasi.NewDisk.
func (u *overlayDisk) Attach(notify func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.notify = notify; notify == nil && u.timer != nil {
		u.timer.Stop()
	}
	if notify != nil {
		notify() // a saved machine may be waiting
	}
}

// room records whether a write found room, and schedules another try.
func (u *overlayDisk) room(err error) {
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case full && u.full.IsZero():
		u.full = time.Now()
		u.logger.Warn("the host's disk is full: the guest waits for room", "disk", u.Path(), "error", err)
	case !full && err == nil && !u.full.IsZero():
		u.logger.Warn("there is room on the host's disk again: the guest continues", "disk", u.Path(), "after", time.Since(u.full).Round(time.Millisecond))
		u.full = time.Time{}
	}
	if full && u.notify != nil {
		if u.timer != nil {
			u.timer.Stop()
		}
		u.timer = time.AfterFunc(roomTime, u.notify)
	}
}

// DiskWaits returns since when the guest waits for room on the host's disk, and the disk's path; the time is zero when it does not wait.
func (v *VM) DiskWaits() (since time.Time, path string) {
	u := v.resources.overlay
	if u == nil {
		return time.Time{}, ""
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.full, u.Path()
}

// Words of the kernel's command line that say where the guest's writable layer is.
const (
	overlayArgument = "agentvm.upper="
	overlayDeferred = overlayArgument + "late" // the disk, from the first start after the machine was saved
)

var errAbsent = errors.New("the disk is not there yet")

// ReadAt reads the disk, or zeros while it is absent.
func (u *overlayDisk) ReadAt(p []byte, at int64) (int, error) {
	if u.absent.Load() {
		clear(p)
		return len(p), nil
	}
	return u.Disk.ReadAt(p, at)
}

// WriteAt writes to the disk.
func (u *overlayDisk) WriteAt(p []byte, at int64) (int, error) {
	if u.absent.Load() {
		return 0, errAbsent
	}
	n, err := u.Disk.WriteAt(p, at)
	u.room(err)
	return n, err
}

// Sync makes durable what was written.
func (u *overlayDisk) Sync() error {
	err := u.Disk.Sync()
	if err != nil {
		u.room(err)
	}
	return err
}

// Discard frees the room of what the guest does not need any more.
func (u *overlayDisk) Discard(offset, length int64) error {
	if u.absent.Load() {
		return errAbsent
	}
	return u.Disk.Discard(offset, length)
}

// openOverlay opens the disk at path; it returns nil for an empty path.
func openOverlay(path string, logger *slog.Logger) (*overlayDisk, error) {
	if path == "" {
		return nil, nil
	}
	d, err := disk.Open(path)
	var used *disk.InUseError
	if errors.As(err, &used) {
		return nil, err // it names the file and the user
	}
	if err != nil {
		return nil, fmt.Errorf("writable disk %s: %w", path, err)
	}
	return &overlayDisk{Disk: d, logger: logger}, nil
}

// Close makes durable what the guest has written and unlocks the disk. Calling it twice does no harm.
func (u *overlayDisk) Close() error {
	if u == nil {
		return nil
	}
	_ = u.Sync() // fails when the disk is closed already
	return u.Disk.Close()
}

// CreateDisk makes a file for Config.Disk, with an empty file system of size bytes, 0 for 10 GiB. The file must not exist. It takes no
// more room on the host than the guest has used.
func CreateDisk(path string, size int64) error { return disk.Create(path, size) }

// DiskInUseError is the error of Start, Restore and Fork when another VM has the disk. It names the file.
type DiskInUseError = disk.InUseError
