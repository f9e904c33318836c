//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// shellPath is the program that nearly every command starts.
const shellPath = "/bin/sh"

// preload makes the kernel read the shell, and the loader that it names, into the largest possible pieces of memory. Read on demand they
// would be in single pages, and mapping, counting and unmapping those one by one is an eighth of a short command. It only saves time, so
// errors are ignored.
func preload(path string) {
	loader, err := readLarge(path)
	if err == nil && loader != "" {
		_, _ = readLarge(loader)
	}
}

// readLarge reads the first megabytes of a program into the page cache, and returns the loader that the program names.
func readLarge(path string) (loader string, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 {
		return "", errors.Join(err, errors.New("no program: "+path))
	}
	if err := populateLarge(fd); err != nil {
		return "", err
	}
	return loaderOf(func(b []byte, at int64) (int, error) { return unix.Pread(fd, b, at) })
}

// populateLarge touches one page of a mapping with MADV_HUGEPAGE: the kernel then reads 4 MiB or up to the file's end
// (do_sync_mmap_readahead), in the largest blocks that fit. Unlike an access, the system call cannot raise a signal.
func populateLarge(fd int) error {
	b, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { _ = unix.Munmap(b) }()
	if err := unix.Madvise(b, unix.MADV_HUGEPAGE); err != nil {
		return os.NewSyscallError("madvise", err)
	}
	return os.NewSyscallError("madvise", unix.Madvise(b, unix.MADV_POPULATE_READ))
}

// Offsets and values of ELF's 64-bit form, little endian (System V ABI, chapters 4 and 5).
const (
	elfHeaderSize    = 64
	elfHeadersAt     = 32
	elfHeadersNumber = 56
	elfSegmentSize   = 56
	elfInterpreter   = 3 // p_type PT_INTERP
	elfMaxSegments   = 64
)

// loaderOf returns the path of the loader in a program's headers, or "" when the file needs none or is no program.
func loaderOf(read func([]byte, int64) (int, error)) (string, error) {
	var header [elfHeaderSize]byte
	if n, err := read(header[:], 0); err != nil || n < len(header) || string(header[:6]) != "\x7fELF\x02\x01" {
		return "", err
	}
	at := int64(binary.LittleEndian.Uint64(header[elfHeadersAt:]))
	number := min(int(binary.LittleEndian.Uint16(header[elfHeadersNumber:])), elfMaxSegments)
	segments := make([]byte, number*elfSegmentSize)
	if n, err := read(segments, at); err != nil || n < len(segments) {
		return "", err
	}
	for ; len(segments) > 0; segments = segments[elfSegmentSize:] {
		if binary.LittleEndian.Uint32(segments) != elfInterpreter {
			continue
		}
		name := make([]byte, min(binary.LittleEndian.Uint64(segments[32:]), unix.PathMax))
		n, err := read(name, int64(binary.LittleEndian.Uint64(segments[8:])))
		path, _, ended := bytes.Cut(name[:max(n, 0)], []byte{0})
		if err != nil || !ended {
			return "", err
		}
		return string(path), nil
	}
	return "", nil
}
