package netstack

import (
	"io"
	"net"
	"sync"
)

const (
	// maxViews is how many pieces are written at once: what writev takes (IOV_MAX is 1024) is more than is useful.
	maxViews = 64

	// gatherSize is the buffer for writers that take one piece at a time.
	gatherSize = 64 << 10
)

// peeker notes the pieces that it is given, up to left bytes, without copying them.
type peeker struct {
	views [][]byte
	left  int
}

func (p *peeker) Write(b []byte) (int, error) {
	if p.left == 0 || len(p.views) == maxViews {
		return 0, io.ErrShortWrite
	}
	n := min(len(b), p.left)
	if n == 0 {
		return 0, nil
	}
	p.views, p.left = append(p.views, b[:n]), p.left-n
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// discarder takes left bytes and then no more.
type discarder struct{ left int }

func (d *discarder) Write(b []byte) (int, error) {
	n := min(len(b), d.left)
	d.left -= n
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// buffersWriter is a writer that takes many pieces at once, as writev does.
type buffersWriter interface {
	WriteBuffers(*net.Buffers) (int64, error)
}

// writeViews writes all pieces to w in the way that costs least, and returns how many bytes w took.
func writeViews(w io.Writer, views [][]byte) (int, error) {
	if len(views) == 1 {
		return w.Write(views[0])
	}
	buffers := net.Buffers(views)
	switch w := w.(type) {
	case *net.TCPConn:
		n, err := buffers.WriteTo(w)
		return int(n), err
	case buffersWriter:
		n, err := w.WriteBuffers(&buffers)
		return int(n), err
	default:
		return writeGathered(w, views)
	}
}

var gatherBuffers = sync.Pool{New: func() any { return new([gatherSize]byte) }}

// writeGathered copies the pieces together first: a system call for each segment costs more than the copy.
func writeGathered(w io.Writer, views [][]byte) (written int, _ error) {
	buffer := gatherBuffers.Get().(*[gatherSize]byte)
	defer gatherBuffers.Put(buffer)
	for len(views) > 0 {
		if len(views[0]) >= gatherSize/2 {
			n, err := w.Write(views[0])
			written, views = written+n, views[1:]
			if err != nil {
				return written, err
			}
			continue
		}
		filled := 0
		for len(views) > 0 && filled+len(views[0]) <= gatherSize {
			filled += copy(buffer[filled:], views[0])
			views = views[1:]
		}
		n, err := w.Write(buffer[:filled])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}
