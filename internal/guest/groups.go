//go:build linux

package guest

import (
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// groupRoot is where the programs' cgroups are.
const groupRoot = "/sys/fs/cgroup/exec"

// groups hands out cgroups, one for each running program, so that killing a program finds all its descendants. Making
// and removing a cgroup costs more than a whole fork; a cgroup that has become empty is used again instead.
type groups struct {
	root string // "" without cgroups
	mu   sync.Mutex
	idle []*group
	made int
}

type group struct {
	dir    string
	fd     int // the directory, for clone3
	events int // descriptor of cgroup.events
}

func newGroups(root string) *groups {
	if err := os.Mkdir(root, 0o755); err != nil && !os.IsExist(err) {
		return &groups{}
	}
	return &groups{root: root}
}

// acquire returns an empty group, or nil where there are no cgroups: then only process groups are killed.
func (g *groups) acquire() *group {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.root == "" {
		return nil
	}
	for i := len(g.idle) - 1; i >= 0 && i >= len(g.idle)-4; i-- {
		if c := g.idle[i]; c.empty() {
			g.idle = append(g.idle[:i], g.idle[i+1:]...)
			return c
		}
	}
	return g.create()
}

func (g *groups) create() *group {
	dir := g.root + "/" + strconv.Itoa(g.made)
	g.made++
	if err := syscall.Mkdir(dir, 0o755); err != nil && err != syscall.EEXIST {
		return nil
	}
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	events, err := syscall.Open(dir+"/cgroup.events", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		_ = syscall.Close(fd)
		return nil
	}
	return &group{dir: dir, fd: fd, events: events}
}

// release returns c to the list. It is not used again before the processes in it have ended.
func (g *groups) release(c *group) {
	if c == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle = append(g.idle, c)
}

// killLeft kills the processes that ended programs have left, and waits at most limit until they have ended. Other callers of groups
// do not wait, because meanwhile these groups are not in the list.
func (g *groups) killLeft(limit time.Duration) error {
	left := g.takeLeft()
	defer func() {
		for _, c := range left {
			g.release(c)
		}
	}()
	for _, c := range left {
		if err := c.kill(); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(limit)
	for _, c := range left {
		for !c.empty() && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// takeLeft removes from the list the groups in which processes still run although their programs have ended.
func (g *groups) takeLeft() (left []*group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle = slices.DeleteFunc(g.idle, func(c *group) bool {
		if c.empty() {
			return false
		}
		left = append(left, c)
		return true
	})
	return left
}

// close removes the groups that are idle and empty.
func (g *groups) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.idle {
		_ = syscall.Close(c.fd)
		_ = syscall.Close(c.events)
		_ = syscall.Rmdir(c.dir)
	}
	g.idle = nil
}

// empty reads "populated 0", which the kernel keeps for the whole subtree.
func (c *group) empty() bool {
	var b [64]byte
	n, err := syscall.Pread(c.events, b[:], 0)
	const want = "populated 0"
	return err == nil && n >= len(want) && string(b[:len(want)]) == want
}

func (c *group) kill() error {
	return os.WriteFile(c.dir+"/cgroup.kill", []byte("1"), 0)
}
