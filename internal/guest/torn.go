//go:build linux

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A machine that is killed leaves the disk as its file system's last commit has it: each file as it was at that moment, so a program that was
// writing one then has left a part of it. The file system keeps when these commits were (endsAttribute); a file that was last changed shortly
// before one of them may be torn. It is not any more when something changes it again.
const (
	endsAttribute = "trusted.agentvm.ends" // of the file system's root: nanoseconds since 1970, 8 bytes each
	maxEnds       = 128                    // that are kept, the newest
	// tornTime is how long before the last commit a save of a file may have begun that was not complete then.
	tornTime = 30 * time.Second
)

// From Linux's include/linux/jbd2.h and fs/ext4/ext4_extents.h.
const (
	journalMagic  = 0xc03b3998
	journalCommit = 2
	extentMagic   = 0xf30a
)

var errJournal = errors.New("its journal is not where mke2fs puts it")

// lastCommit returns when the machine that had an ext4 file system mounted the last time has made its last commit; zero: it has made none.
func lastCommit(device io.ReaderAt) (time.Time, error) {
	super := make([]byte, 1024)
	if _, err := device.ReadAt(super, 1024); err != nil {
		return time.Time{}, err
	}
	e, err := parseExtent(super, 0)
	if err != nil {
		return time.Time{}, err
	}
	tree := super[0x10c:][:60] // s_jnl_blocks, a copy of the journal's i_block
	if super[0xfd] != 1 || binary.LittleEndian.Uint16(tree) != extentMagic || binary.LittleEndian.Uint16(tree[6:]) != 0 {
		return time.Time{}, errJournal
	}
	var last time.Time
	for i := range min(int(binary.LittleEndian.Uint16(tree[2:])), 4) {
		one := tree[12+12*i:]
		length, start := int64(binary.LittleEndian.Uint16(one[4:])), int64(binary.LittleEndian.Uint32(one[8:]))|int64(binary.LittleEndian.Uint16(one[6:]))<<32
		t, err := lastCommitIn(io.NewSectionReader(device, start*e.blockSize, length*e.blockSize), int(e.blockSize))
		if err != nil {
			return time.Time{}, err
		}
		if t.After(last) {
			last = t
		}
	}
	if mounted := time.Unix(int64(binary.LittleEndian.Uint32(super[0x2c:])), 0); last.Before(mounted) {
		return time.Time{}, nil // a machine of before has made it, and ended cleanly
	}
	return last, nil
}

// lastCommitIn looks at all blocks of a part of a journal. Those of data never begin with the magic number.
func lastCommitIn(part io.Reader, blockSize int) (last time.Time, err error) {
	buffer := make([]byte, max(blockSize, 256<<10))
	for {
		n, err := io.ReadFull(part, buffer)
		for block := buffer[:n]; len(block) >= blockSize; block = block[blockSize:] {
			if binary.BigEndian.Uint32(block) != journalMagic || binary.BigEndian.Uint32(block[4:]) != journalCommit {
				continue
			}
			if t := time.Unix(int64(binary.BigEndian.Uint64(block[0x30:])), int64(binary.BigEndian.Uint32(block[0x38:]))); t.After(last) {
				last = t
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return last, nil
		case err != nil:
			return last, err
		}
	}
}

// ends are the last commits of machines that did not end cleanly.
type ends []time.Time

// noteEnd adds one to those of the file system mounted at target, and makes that durable: the next mount finds only the newest commit.
func noteEnd(target string, last time.Time) error {
	list, err := readEnds(target)
	if err != nil || slices.ContainsFunc(list, last.Equal) {
		return err
	}
	list = append(list, last)
	var value []byte
	for _, t := range list[max(0, len(list)-maxEnds):] {
		value = binary.LittleEndian.AppendUint64(value, uint64(t.UnixNano()))
	}
	dir, err := os.Open(target)
	if err != nil {
		return err
	}
	err = unix.Fsetxattr(int(dir.Fd()), endsAttribute, value, 0)
	return errors.Join(os.NewSyscallError("note an end that was not clean", err), dir.Sync(), dir.Close())
}

// readEnds returns the ends that the file system with a directory at its root has had.
func readEnds(root string) (list ends, err error) {
	value := make([]byte, 8*maxEnds)
	n, err := unix.Getxattr(root, endsAttribute, value)
	switch {
	case err == unix.ENODATA || err == unix.ENOTSUP:
		return nil, nil
	case err != nil:
		return nil, os.NewSyscallError("read which ends were not clean", err)
	}
	for ; n >= 8; n -= 8 {
		list = append(list, time.Unix(0, int64(binary.LittleEndian.Uint64(value[n-8:]))))
	}
	slices.Reverse(list)
	return list, nil
}

// torn says whether a file that was last changed at a time may be a part of what a program was writing.
func (e ends) torn(changed time.Time) bool {
	return slices.ContainsFunc(e, func(last time.Time) bool { return !changed.After(last) && changed.After(last.Add(-tornTime)) })
}

// ends are those of the layer's file system.
func (u upper) ends() (ends, error) {
	if !u.onDisk {
		return nil, nil
	}
	return readEnds(fmt.Sprintf("/proc/self/fd/%d/.", u.dir.Fd()))
}

// torn is files.Service.Torn for the files of the guest.
func (s *Supervisor) torn() func(fd int, st *unix.Stat_t) bool {
	s.starting.Lock()
	defer s.starting.Unlock()
	return s.upper.torn()
}

// torn returns what says whether an open file may be torn: one of the root or of a copy-on-write mount, which the disk has, but none of other
// mounts. It returns nil when all ends were clean.
func (u upper) torn() func(fd int, st *unix.Stat_t) bool {
	ends, err := u.ends()
	if err != nil || len(ends) == 0 {
		return nil
	}
	return func(fd int, st *unix.Stat_t) bool {
		var fs unix.Statfs_t
		return ends.torn(time.Unix(st.Ctim.Unix())) && unix.Fstatfs(fd, &fs) == nil && (fs.Type == unix.OVERLAYFS_SUPER_MAGIC || fs.Type == unix.EXT4_SUPER_MAGIC)
	}
}

// confirm marks files as whole that this start has read and found to be what they should be, or has replaced.
func (u upper) confirm(names ...string) {
	torn := u.torn()
	if torn == nil {
		return
	}
	for _, name := range names {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && torn(fd, &st) {
			_ = unix.Fchmod(fd, st.Mode&0o7777) // which sets the time of its last change
		}
		_ = unix.Close(fd)
	}
}
