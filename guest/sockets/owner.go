//go:build linux

package sockets

import (
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
	left   int // descriptors that may still be looked at
}

// owned completes the sockets of entries, after looking at about limit descriptors at most. Of several processes that share a socket the youngest is told, which is nearly
// always the one that uses it.
func owned(proc string, entries []entry, limit int) []rpc.Socket {
	s := search{proc: proc, wanted: make(map[uint32][]int), list: make([]rpc.Socket, len(entries)), left: limit}
	for i, e := range entries {
		s.list[i] = e.Socket
		if e.inode != 0 {
			s.wanted[e.inode] = append(s.wanted[e.inode], i)
		}
	}
	if len(s.wanted) > 0 {
		s.run()
	}
	return s.list
}

func (s *search) run() {
	dir, err := os.Open(s.proc)
	if err != nil {
		return
	}
	names, _ := dir.Readdirnames(-1)
	_ = dir.Close()
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	for _, pid := range slices.Backward(pids) {
		s.look(pid)
		if len(s.wanted) == 0 || s.left <= 0 {
			return
		}
	}
}

// look goes through the descriptors of a process, which may end meanwhile.
func (s *search) look(pid int) {
	of := s.proc + "/" + strconv.Itoa(pid)
	dir, err := os.Open(of + "/fd")
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	name, fd := "", int(dir.Fd())
	for s.left > 0 {
		names, _ := dir.Readdirnames(256)
		if len(names) == 0 {
			return
		}
		s.left -= len(names)
		for _, link := range names {
			inode := socketInode(fd, link)
			indexes := s.wanted[inode]
			if indexes == nil {
				continue
			}
			if name == "" {
				name = processName(of)
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

func processName(of string) string {
	b, _ := os.ReadFile(of + "/comm")
	return strings.TrimSuffix(string(b), "\n")
}
