//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"agentvm/rpc"
)

// Names of the virtio console ports that carry package rpc: the supervisor, and the file service.
const (
	controlPort = "agentvm.control"
	bulkPort    = "agentvm.bulk"
)

// errNoPort says that the machine has no port of a name.
var errNoPort = errors.New("no console port")

// port is a virtio console port. The kernel has no connection on it, only a host that is there or not.
type port struct {
	*os.File
	absent int // reads in a row that found no host
	// splices says that the kernel's driver moves the content of pipes.
	splices bool
}

// openPort finds a port by name.
func openPort(name string) (*port, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		b, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(b)) != name {
			continue
		}
		device := "/dev/" + filepath.Base(filepath.Dir(path))
		fd, err := syscall.Open(device, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: device, Err: err}
		}
		return &port{File: os.NewFile(uintptr(fd), device), splices: canSplice()}, nil
	}
	return nil, fmt.Errorf("%w named %s among %d", errNoPort, name, len(names))
}

// Read reports an absent host as rpc.ErrHangup. The kernel then answers at once, so the waiting is done here: rarely
// enough to cost nothing, often enough not to be noticed.
func (p *port) Read(b []byte) (int, error) {
	if p.absent > 0 {
		time.Sleep(min(time.Duration(p.absent)*5*time.Millisecond, 100*time.Millisecond))
	}
	n, err := p.File.Read(b)
	if errors.Is(err, io.EOF) {
		p.absent++
		return 0, rpc.ErrHangup
	}
	p.absent = 0
	return n, err
}
