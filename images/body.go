package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// body is the part of a file that a server sends.
type body struct {
	io.ReadCloser
	url    string
	offset int64 // of its first byte in the file
	total  int64 // of the whole file, 0 when unknown
	stall  time.Duration
	timer  *time.Timer
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// newBody checks a server's answer to a request for the bytes from offset on.
func newBody(response *http.Response, offset int64) (*body, error) {
	b := &body{ReadCloser: response.Body, url: response.Request.URL.Redacted()}
	switch status := response.StatusCode; {
	case status == http.StatusOK:
	case status == http.StatusPartialContent && offset > 0:
		b.offset = contentStart(response.Header.Get("Content-Range"))
		if b.offset != offset {
			return nil, fmt.Errorf("%s: the server sent another part of the file than was asked for", b.url)
		}
	default:
		return nil, &statusError{b.url, status}
	}
	if response.ContentLength >= 0 {
		b.total = b.offset + response.ContentLength
	}
	return b, nil
}

var errStalled = errors.New("no data came for too long")

// watch cancels the request when no byte has arrived for the time stall.
func (b *body) watch(ctx context.Context, cancel context.CancelCauseFunc, stall time.Duration) {
	b.stall, b.ctx, b.cancel = stall, ctx, cancel
	b.timer = time.AfterFunc(stall, func() { cancel(errStalled) })
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(b.stall)
	}
	return n, err
}

// Close ends the request.
func (b *body) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// copyTo appends the body to dst, which has done bytes.
func (b *body) copyTo(ctx context.Context, dst *os.File, done, limit int64, report func(done, total int64)) error {
	buf := make([]byte, 1<<17)
	for {
		report(done, b.total)
		n, readErr := b.Read(buf)
		if int64(n) > limit-done {
			return fmt.Errorf("%s: larger than the limit of %d bytes", b.url, limit)
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return err
		}
		done += int64(n)
		if readErr == io.EOF {
			report(done, done)
			return nil
		}
		if readErr != nil {
			return b.failed(ctx, readErr)
		}
	}
}

// failed describes an error in the middle of a body.
func (b *body) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if context.Cause(b.ctx) == errStalled {
		err = errStalled
	}
	return &brokenError{fmt.Errorf("%w: %s: the download broke off: %w", ErrUnreachable, b.url, err)}
}
