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

	"agentvm/internal/guest/guestrpc"
)

// Names of the virtio console ports that carry package guestrpc: the supervisor, and the file service.
const (
	controlPort = "agentvm.control"
	bulkPort    = "agentvm.bulk"
)

// errNoPort means that the machine has no port with that name.
var errNoPort = errors.New("no console port")

// port is a virtio console port. It has no connections; the host has it open or not.
type port struct {
	*os.File
	absent int // reads in a row that found no host
	// splices reports that the kernel's driver moves pages of pipes, see spliceParameter.
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

// Read reports an absent host as guestrpc.ErrHangup. The kernel's read then returns at once, so Read waits 5 to 100 ms itself, in order
// not to use the processor.
func (p *port) Read(b []byte) (int, error) {
	if p.absent > 0 {
		time.Sleep(min(time.Duration(p.absent)*5*time.Millisecond, 100*time.Millisecond))
	}
	n, err := p.File.Read(b)
	if errors.Is(err, io.EOF) {
		p.absent++
		return 0, guestrpc.ErrHangup
	}
	p.absent = 0
	return n, err
}
