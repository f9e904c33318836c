package imagebuild

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/host/httpretry"
)

// Bounds of a file that ADD fetches: its bytes, its redirects, and how long its server may send nothing.
const (
	maxFetched   = 8 << 30
	maxRedirects = 10
	fetchStall   = time.Minute
)

// hostAddress stands for the host's loopback in the fetcher's gate, as an address of its network does in a VM's.
var hostAddress = netip.MustParseAddr("192.0.2.1")

// fetch brings the file of a URL to the host, where the network's policy permits what a VM might do: names, addresses and ports are asked of
// the gate. The checksum, as sha256:HEX, is compared unless it is empty.
func (b *builder) fetch(ctx context.Context, from, checksum string) (name string, _ *node, err error) {
	at, err := url.Parse(from)
	if err != nil {
		return "", nil, err
	}
	network, stall := b.VM.Network, cmp.Or(b.stall, fetchStall)
	if network.Disabled {
		return "", nil, errors.New("the network is disabled")
	}
	gate, err := egress.New(egress.Config{
		Policy: network.Policy, HostPorts: network.HostPorts, HostAddrs: []netip.Addr{hostAddress}, Dial: network.Dial, Logger: b.VM.Logger,
	})
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialPermitted(ctx, gate, b.LookUp, address)
		},
		TLSHandshakeTimeout: stall, ResponseHeaderTimeout: stall, DisableCompression: true, ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: &httpretry.Transport{Base: transport, Logger: b.VM.Logger}, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		if via[0].URL.Scheme == "https" && to.URL.Scheme != "https" {
			return fmt.Errorf("redirect from https to %s", to.URL.Redacted())
		}
		return nil
	}}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(3*stall, func() { cancel(errors.New("the server sends nothing")) })
	defer stalled.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return "", nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", nil, stallOf(ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", nil, fmt.Errorf("the server answers %s", answer.Status)
	}
	f, err := os.CreateTemp(b.spool, "fetched-")
	if err != nil {
		return "", nil, err
	}
	b.spools = append(b.spools, f)
	hash := sha256.New()
	body := io.LimitReader(answer.Body, maxFetched+1)
	size, err := io.Copy(io.MultiWriter(f, hash), readerFunc(func(p []byte) (int, error) {
		stalled.Reset(stall)
		return body.Read(p)
	}))
	if err != nil {
		return "", nil, stallOf(ctx, err)
	}
	if size > maxFetched {
		return "", nil, fmt.Errorf("%w: a file of more than %d GiB", images.ErrLimit, maxFetched>>30)
	}
	if got := "sha256:" + hex.EncodeToString(hash.Sum(nil)); checksum != "" && got != checksum {
		return "", nil, fmt.Errorf("the checksum is wrong: got %s, want %s", got, checksum)
	}
	header := tar.Header{Typeflag: tar.TypeReg, Mode: 0o600, Size: size, ModTime: b.now}
	if modified, err := http.ParseTime(answer.Header.Get("Last-Modified")); err == nil {
		header.ModTime = modified
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(f, 0, size)), nil }
	if name = path.Base(at.Path); name == "." || name == "/" {
		name = ""
	}
	return name, &node{header: header, open: open}, nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// stallOf returns why a request was canceled, if it was.
func stallOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// dialPermitted connects to host:port through a gate, which learns of the name as it does of a guest's queries.
func dialPermitted(ctx context.Context, gate *egress.Gate, lookUp func(context.Context, string) ([]netip.Addr, error), address string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	literal, notAddress := netip.ParseAddr(host)
	switch {
	case notAddress == nil:
		addresses = []netip.Addr{literal}
	case strings.EqualFold(host, egress.HostName):
		addresses = []netip.Addr{hostAddress}
	default:
		const typeA = 1 // of DNS
		if err := gate.Question(host, typeA); err != nil {
			return nil, err
		}
		if addresses, err = lookUp(ctx, host); err != nil {
			return nil, err
		}
	}
	var errs []error
	for _, a := range addresses {
		if notAddress != nil && a != hostAddress {
			if err := gate.Answer(host, nil, a, time.Minute); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		conn, err := gate.DialTCP(ctx, netip.AddrPort{}, netip.AddrPortFrom(a.Unmap(), uint16(port)))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
