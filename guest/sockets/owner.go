//go:build linux

package sockets

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

// maxDescriptors bounds how many descriptors of the machine's processes are looked at for one answer.
const maxDescriptors = 1 << 16

// search looks for the processes that hold some sockets.
type search struct {
	proc   string           // directory, as /proc
	wanted map[uint32][]int // indexes in list by inode; those found are taken out
	list   []rpc.Socket
	seen   map[int]bool // processes that were looked at
	left   int          // descriptors that may still be looked at
	names  []string     // reused
	buffer [4 << 10]byte
}

// owned completes the sockets of entries, after looking at about limit descriptors at most. Of several processes that share a
// socket the youngest is told, which is nearly always the one that uses it.
//
// The processes of the control group in which a socket was made come first: each program of the host's has one of its own, so
// that in most cases one process is looked at, and not all.
func owned(proc string, entries []entry, limit int) []rpc.Socket {
	s := search{proc: proc, wanted: make(map[uint32][]int), list: make([]rpc.Socket, len(entries)), seen: make(map[int]bool), left: limit}
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
	if s.among(members(groups)); len(s.wanted) > 0 {
		s.among(s.all())
	}
	return s.list
}

// all lists the machine's processes.
func (s *search) all() (pids []int) {
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

// among looks at some processes, the youngest first, until nothing more is wanted.
func (s *search) among(pids []int) {
	slices.Sort(pids)
	for _, pid := range slices.Backward(pids) {
		if len(s.wanted) == 0 || s.left <= 0 {
			return
		}
		if !s.seen[pid] {
			s.seen[pid] = true
			s.look(pid)
		}
	}
}

// look goes through the descriptors of a process, which may end meanwhile.
func (s *search) look(pid int) {
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

// socketInode reads a link like "socket:[4711]"; 0 for what is no socket.
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
	return string(bytes.TrimSuffix(readSome(unix.AT_FDCWD, of+"/comm", b[:]), []byte{'\n'}))
}

// readSome reads the begin of a file; nothing where there is none.
func readSome(dir int, name string, b []byte) []byte {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	n, _ := unix.Read(fd, b)
	return b[:max(n, 0)]
}
