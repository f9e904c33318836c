package journal

import (
	"errors"
	"io"
	"sync"
)

// storage is a file, or memory that behaves like one.
type storage interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error
}

// readAt reads as much of p as there is.
func readAt(s storage, p []byte, offset int64) (int, error) {
	n, err := s.ReadAt(p, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// memory is a file of pages that exist once they are written to.
type memory struct {
	mu    sync.RWMutex
	pages map[int64]*[memoryPage]byte
	size  int64
}

const memoryPage = 16 << 10

func newMemory() *memory { return &memory{pages: make(map[int64]*[memoryPage]byte)} }

func (m *memory) ReadAt(p []byte, offset int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var err error
	if left := m.size - offset; left < int64(len(p)) {
		p, err = p[:max(0, left)], io.EOF
	}
	n := 0
	for n < len(p) {
		index, within := (offset+int64(n))/memoryPage, (offset+int64(n))%memoryPage
		part := p[n:min(len(p), n+int(memoryPage-within))]
		if content := m.pages[index]; content != nil {
			copy(part, content[within:])
		} else {
			clear(part)
		}
		n += len(part)
	}
	return n, err
}

func (m *memory) WriteAt(p []byte, offset int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for n < len(p) {
		index, within := (offset+int64(n))/memoryPage, (offset+int64(n))%memoryPage
		if m.pages[index] == nil {
			m.pages[index] = new([memoryPage]byte)
		}
		n += copy(m.pages[index][within:], p[n:])
	}
	m.size = max(m.size, offset+int64(n))
	return n, nil
}

func (m *memory) Sync() error { return nil }

// Close gives the memory back. A reader that is at work finds an empty file.
func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.pages)
	m.size = 0
	return nil
}
