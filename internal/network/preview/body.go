package preview

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
)

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
