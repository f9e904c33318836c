//go:build linux

package sockets

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// maxDescriptors bounds how many descriptors are read for one answer.
const maxDescriptors = 1 << 16

// search looks for the processes that hold some sockets.
type search struct {
	proc   string           // a directory like /proc
	wanted map[uint32][]int // indexes in list by inode; those found are removed
	list   []guestrpc.Socket
	seen   map[int]bool // processes that were searched
	left   int          // descriptors that may still be read
	names  []string     // reused
	buffer [4 << 10]byte
}

// withOwners adds process and name to the sockets of entries, and reads about limit descriptors at most. Of several processes that
// share a socket it names the youngest, which is nearly always the one that uses it.
//
// The processes of the control group in which a socket was made come first: each program that the host
// started has one of its own, so in most cases one process is searched instead of all.
func withOwners(proc string, entries []entry, limit int) []guestrpc.Socket {
	s := search{proc: proc, wanted: make(map[uint32][]int), list: make([]guestrpc.Socket, len(entries)), seen: make(map[int]bool), left: limit}
	var groups []uint64
	for i, e := range entries {
		s.list[i] = e.Socket
		if e.inode == 0 {
			continue
		}
		s.wanted[e.inode] = append(s.wanted[e.inode], i)
		if e.group != 0 && !slices.Contains(groups, e.group) && len(groups) < maxGroups {
			groups = append(groups, e.group)
		}
	}
	if len(s.wanted) == 0 {
		return s.list
	}
	if s.searchProcesses(members(groups)); len(s.wanted) > 0 {
		s.searchProcesses(s.processes())
	}
	return s.list
}

// processes lists the guest's processes.
func (s *search) processes() (pids []int) {
	dir, err := os.Open(s.proc)
	if err != nil {
		return nil
	}
	names, _ := dir.Readdirnames(-1)
	_ = dir.Close()
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// searchProcesses searches processes, the youngest first, until all sockets are found.
func (s *search) searchProcesses(pids []int) {
	slices.Sort(pids)
	for _, pid := range slices.Backward(pids) {
		if len(s.wanted) == 0 || s.left <= 0 {
			return
		}
		if !s.seen[pid] {
			s.seen[pid] = true
			s.searchProcess(pid)
		}
	}
}

// searchProcess searches the descriptors of a process, which may end meanwhile.
func (s *search) searchProcess(pid int) {
	of := s.proc + "/" + strconv.Itoa(pid)
	dir, err := unix.Open(of+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(dir) }()
	name := ""
	for s.left > 0 {
		n, err := unix.ReadDirent(dir, s.buffer[:])
		if err != nil || n <= 0 {
			return
		}
		_, _, s.names = unix.ParseDirent(s.buffer[:n], -1, s.names[:0])
		s.left -= len(s.names)
		for _, link := range s.names {
			inode := socketInode(dir, link)
			indexes := s.wanted[inode]
			if indexes == nil {
				continue
			}
			if name == "" {
				name = s.processName(of)
			}
			for _, i := range indexes {
				s.list[i].PID, s.list[i].Process = pid, name
			}
			if delete(s.wanted, inode); len(s.wanted) == 0 {
				return
			}
		}
	}
}

// socketInode reads a link like "socket:[4711]". It returns 0 when the descriptor is no socket.
func socketInode(dir int, name string) uint32 {
	var b [32]byte
	n, err := unix.Readlinkat(dir, name, b[:])
	if err != nil {
		return 0
	}
	number, ok := strings.CutPrefix(string(b[:n]), "socket:[")
	if !ok {
		return 0
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(inode)
}

func (s *search) processName(of string) string {
	var b [64]byte
	return string(bytes.TrimSuffix(readStart(unix.AT_FDCWD, of+"/comm", b[:]), []byte{'\n'}))
}

// readStart reads the beginning of a file into b. It returns nothing when there is no such file.
func readStart(dir int, name string, b []byte) []byte {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	n, _ := unix.Read(fd, b)
	return b[:max(n, 0)]
}
