package preview

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
)

// places bounds the requests that are served at once. A token may take as many places as it leaves free: a token whose requests all
// hang gets half of them, two such tokens get a third each, and there is always a place for another.
type places struct {
	mu   sync.Mutex
	free int
	used map[string]int // by token
}

func newPlaces(n int) *places { return &places{free: n, used: make(map[string]int)} }

func (p *places) take(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 || p.used[token] > p.free {
		return false
	}
	p.free--
	p.used[token]++
	return true
}

func (p *places) leave(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
	if p.used[token]--; p.used[token] == 0 {
		delete(p.used, token)
	}
}

// requestBody is the body of a request, and remembers whether it could be read: when it cannot, the guest is not at fault.
type requestBody struct {
	io.ReadCloser
	broken atomic.Bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var network net.Error
	var large *http.MaxBytesError
	if err != nil && err != io.EOF && !errors.As(err, &network) && !errors.As(err, &large) &&
		!errors.Is(err, http.ErrBodyReadAfterClose) && !errors.Is(err, os.ErrDeadlineExceeded) {
		b.broken.Store(true)
	}
	return n, err
}

func (b *requestBody) malformed() bool { return b != nil && b.broken.Load() }
