//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

// maxBundle bounds a bundle that is read, in bytes; real ones have 200 KiB.
const maxBundle = 16 << 20

// What is added to a bundle stands between these lines, which readers of PEM pass over, and is replaced by what the next start adds: an
// authority for secrets is another one each time.
const (
	bundleBegin = "# agentvm: certificates of this VM\n"
	bundleEnd   = "# agentvm: end\n"
)

// bundle is a file of trusted certificates that programs read.
type bundle struct {
	path   string
	create bool // create it when it is missing
}

// bundles returns the file of Debian, Alpine and Arch, that of BSD's and Alpine's libraries, and that of Fedora.
func bundles() []bundle {
	return []bundle{
		{"/etc/ssl/certs/ca-certificates.crt", true},
		{"/etc/ssl/cert.pem", false},
		{"/etc/pki/tls/certs/ca-bundle.crt", false},
	}
}

// trust appends certificates to the bundles below root that do not have them. It follows links, so that a bundle with several
// names receives them once.
func trust(root string, certificate []byte, list []bundle) error {
	certificate = bytes.TrimSpace(certificate)
	if len(certificate) == 0 {
		return nil
	}
	if !bytes.HasPrefix(certificate, []byte("-----BEGIN CERTIFICATE-----")) {
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: "the CA certificate is not in PEM form"}
	}
	for _, b := range list {
		if err := b.add(root+b.path, certificate); err != nil {
			return fmt.Errorf("add the CA certificate to %s: %w", b.path, err)
		}
	}
	return nil
}

func (b bundle) add(path string, certificate []byte) error {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if !b.create {
			return nil
		}
		real = path
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	old, err := readBundle(real)
	if err != nil {
		return err
	}
	text := withoutAdded(old)
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	if !bytes.Contains(text, certificate) {
		text = slices.Concat(text, []byte(bundleBegin), certificate, []byte("\n"+bundleEnd))
	}
	if bytes.Equal(text, old) {
		return nil
	}
	dir, err := unix.Open(filepath.Dir(real), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	return replaceFile(dir, filepath.Base(real), text)
}

// withoutAdded returns a bundle as the image has it.
func withoutAdded(text []byte) []byte {
	before, added, found := bytes.Cut(text, []byte(bundleBegin))
	if !found {
		return text
	}
	_, after, _ := bytes.Cut(added, []byte(bundleEnd))
	return slices.Concat(before, after)
}

// readBundle reads a regular file. A missing one counts as empty.
func readBundle(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxBundle {
		return nil, unix.EINVAL
	}
	return io.ReadAll(io.LimitReader(f, maxBundle))
}
