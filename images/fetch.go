package images

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	registrytransport "github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"agentvm/internal/host/httpretry"
)

// ErrUnreachable is wrapped by errors about servers that could not be reached: no network, no such host, no
// connection, a connection that broke. Errors about a wrong answer (a missing file, a wrong checksum) do not wrap it.
var ErrUnreachable = errors.New("image server cannot be reached")

const (
	fetchAttempts = 4
	fetchBackoff  = 300 * time.Millisecond // doubled after each attempt
	fetchStall    = 30 * time.Second       // without a single byte
	maxRedirects  = 5
)

// fetcher gets files over HTTP: with time-outs, a few retries, and size limits.
type fetcher struct {
	client  *http.Client
	log     *slog.Logger
	accept  string // the header of that name; empty for none
	backoff time.Duration
	stall   time.Duration
	wait    func(context.Context, time.Duration) error // for what servers ask for; nil: with a timer
}

func newFetcher(transport http.RoundTripper, log *slog.Logger) *fetcher {
	if transport == nil {
		dialer := &net.Dialer{Timeout: 10 * time.Second}
		transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 30 * time.Second,
			DisableCompression: true, // checksums are of the file as it is stored
		}
	}
	f := &fetcher{log: log, backoff: fetchBackoff, stall: fetchStall}
	f.client = &http.Client{Transport: f.patient(transport), CheckRedirect: checkRedirect}
	return f
}

// patient returns a transport that obeys a server's wish to be asked later.
func (f *fetcher) patient(base http.RoundTripper) http.RoundTripper { return patientTransport{f, base} }

type patientTransport struct {
	f    *fetcher
	base http.RoundTripper
}

func (t patientTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	retry := httpretry.Transport{Base: t.base, Backoff: t.f.backoff, Logger: t.f.log, Wait: t.f.wait}
	return retry.RoundTrip(r)
}

// ofHost returns a fetcher of file URLs. Others never get there, so that no server can redirect to a file of this host.
func (f *fetcher) ofHost() *fetcher {
	host := *f
	host.client = &http.Client{Transport: http.NewFileTransport(hostFiles{}), CheckRedirect: func(to *http.Request, _ []*http.Request) error {
		return fmt.Errorf("%w: %s", errRedirect, to.URL.Redacted())
	}}
	return &host
}

// hostFiles are the regular files of this host, by the paths of file URLs.
type hostFiles struct{}

// Open implements http.FileSystem. A pipe, which could wait forever, counts as missing.
func (hostFiles) Open(name string) (http.File, error) {
	if runtime.GOOS == "windows" {
		name = strings.TrimPrefix(name, "/") // of /C:/folder
	}
	name = filepath.FromSlash(name)
	if info, err := os.Stat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file: %w", name, fs.ErrNotExist)
	}
	return os.Open(name)
}

// errRedirect keeps refused redirects apart from network failures.
var errRedirect = errors.New("redirect refused")

func checkRedirect(to *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("%w: more than %d", errRedirect, maxRedirects)
	}
	if via[0].URL.Scheme == "https" && to.URL.Scheme != "https" {
		return fmt.Errorf("%w: from https to %s", errRedirect, to.URL.Redacted())
	}
	return nil
}

// statusError is a server's refusal.
type statusError struct {
	url    string
	status int
}

func (e *statusError) Error() string {
	if e.status == http.StatusNotFound && strings.HasPrefix(e.url, "file:") {
		return e.url + ": there is no such file"
	}
	return fmt.Sprintf("%s: the server answered %d %s", e.url, e.status, http.StatusText(e.status))
}

// Unwrap makes the answers that a gateway gives for a server it cannot reach count as unreachable.
func (e *statusError) Unwrap() error {
	switch e.status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return ErrUnreachable
	}
	return nil
}

// brokenError is a failure that another attempt may not meet.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// text returns a small file.
func (f *fetcher) text(ctx context.Context, url string, limit int64) ([]byte, error) {
	var text []byte
	err := f.retry(ctx, func() error {
		body, err := f.get(ctx, url, 0)
		if err != nil {
			return err
		}
		defer body.Close()
		if text, err = io.ReadAll(io.LimitReader(body, limit+1)); err != nil {
			return body.failed(ctx, err)
		}
		if int64(len(text)) > limit {
			return fmt.Errorf("%s: larger than %d bytes", url, limit)
		}
		return nil
	})
	return text, err
}

// file appends to dst the rest of the file at url. It does not check that dst has the file's beginning, so the caller must verify
// the whole afterwards.
func (f *fetcher) file(ctx context.Context, url string, dst *os.File, limit int64, report func(done, total int64)) error {
	return f.retry(ctx, func() error {
		have, err := dst.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		body, err := f.get(ctx, url, have)
		if err != nil {
			return err
		}
		defer body.Close()
		if body.offset != have {
			have = body.offset
			if err := restart(dst, have); err != nil {
				return err
			}
		}
		if body.total > limit {
			return fmt.Errorf("%s: %d bytes are more than the limit of %d", url, body.total, limit)
		}
		return body.copyTo(ctx, dst, have, limit, report)
	})
}

// restart cuts dst to size, where the server's answer continues.
func restart(dst *os.File, size int64) error {
	if err := dst.Truncate(size); err != nil {
		return err
	}
	_, err := dst.Seek(size, io.SeekStart)
	return err
}

// retry calls attempt until it succeeds, fails for good, or has failed too often.
func (f *fetcher) retry(ctx context.Context, attempt func() error) error {
	wait := f.backoff
	for n := 1; ; n++ {
		err := attempt()
		if ctxErr := ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		var broken *brokenError
		if !errors.As(err, &broken) || n == fetchAttempts {
			return err
		}
		f.log.Info("download interrupted, trying again", "attempt", n, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
			wait *= 2
		}
	}
}

// get requests url from offset on. The answer may start at 0 instead.
func (f *fetcher) get(ctx context.Context, url string, offset int64) (*body, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	request.Header.Set("User-Agent", "agentvm")
	if f.accept != "" {
		request.Header.Set("Accept", f.accept)
	}
	if offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	response, err := f.client.Do(request)
	if err != nil {
		cancel(nil)
		return nil, connectError(err)
	}
	b, err := newBody(response, offset)
	if err != nil {
		response.Body.Close()
		cancel(nil)
		return nil, err
	}
	b.watch(ctx, cancel, f.stall)
	return b, nil
}

// connectError sorts failures to get an answer at all. Failures to connect are final, so that a host without a
// network need not wait; failures of an existing connection are worth another attempt.
func connectError(err error) error {
	var certificate *tls.CertificateVerificationError
	var op *net.OpError
	var refused *registrytransport.Error
	switch {
	case errors.Is(err, errRedirect), errors.Is(err, errPrivate), errors.As(err, &certificate), errors.As(err, &refused):
		return err
	case errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return &brokenError{fmt.Errorf("%w: %w", ErrUnreachable, err)}
}

// contentStart returns where a partial answer starts, or -1 when its header says nothing usable.
func contentStart(header string) int64 {
	span, _ := strings.CutPrefix(header, "bytes ")
	first, _, _ := strings.Cut(span, "-")
	start, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return -1
	}
	return start
}
