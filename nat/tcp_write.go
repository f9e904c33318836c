package nat

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// hostWriter is the host's connection as ReadTo writes to it: bytes are counted, and a failure is kept, so that it is not
// taken for one of the guest.
type hostWriter struct {
	splice  *splice
	writing atomic.Bool
	failed  atomic.Pointer[error]
}

// fitting is w, or a vectorWriter if the host's connection takes many pieces at once.
func (w *hostWriter) fitting() io.Writer {
	switch host := w.splice.host.(type) {
	case *net.TCPConn:
		return &vectorWriter{w, func(b *net.Buffers) (int64, error) { return b.WriteTo(host) }}
	case interface {
		WriteBuffers(*net.Buffers) (int64, error)
	}:
		return &vectorWriter{w, host.WriteBuffers}
	}
	return w
}

// Write writes p to the host.
func (w *hostWriter) Write(p []byte) (int, error) {
	n, err := w.count(func() (int64, error) {
		n, err := w.splice.host.Write(p)
		return int64(n), err
	})
	return int(n), err
}

// count does a write.
func (w *hostWriter) count(write func() (int64, error)) (int64, error) {
	w.writing.Store(true)
	n, err := write()
	if err != nil {
		w.failed.Store(&err)
	}
	w.writing.Store(false)
	w.splice.flow.countSent(int(n))
	return n, err
}

// failure is what the host's connection refused a write with.
func (w *hostWriter) failure() error {
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// resetBehindEOF is for the reader of a connection that seems to have finished: of a connection that was reset, the
// system tells the reset to one of reader and writer only, and to the other one that it has finished. If a write is
// going on, it may be about to learn of the reset; the end of a truncated answer must not look like its proper end.
func (w *hostWriter) resetBehindEOF() error {
	for range 20 {
		if !w.writing.Load() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return w.failure()
}

// vectorWriter writes many pieces with one system call.
type vectorWriter struct {
	*hostWriter
	write func(*net.Buffers) (int64, error)
}

// WriteBuffers writes all of b to the host.
func (w *vectorWriter) WriteBuffers(b *net.Buffers) (int64, error) {
	return w.count(func() (int64, error) { return w.write(b) })
}

// guestWriter is the guest's connection, which blocks above the high mark and counts.
type guestWriter struct{ splice *splice }

// Write writes p to the guest.
func (w guestWriter) Write(p []byte) (int, error) {
	n, err := w.splice.guest.Write(p)
	w.splice.flow.countReceived(n)
	return n, err
}
