//go:build linux

package guest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

const certificate = "-----BEGIN CERTIFICATE-----\nb3Vycw==\n-----END CERTIFICATE-----\n"

func TestTrust(t *testing.T) {
	const added = bundleBegin + certificate + bundleEnd
	const other = "-----BEGIN CERTIFICATE-----\nb3RoZXI=\n-----END CERTIFICATE-----\n"
	const debian, library, fedora = "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt"
	for _, tt := range []struct {
		name  string
		files map[string]string
		links map[string]string
		want  map[string]string // what becomes of files; "" for those that are not made
	}{
		{"nothing there", nil, nil, map[string]string{debian: added, library: "", fedora: ""}},
		{"appended", map[string]string{debian: other}, nil, map[string]string{debian: other + added, library: ""}},
		{"no line end", map[string]string{debian: "x"}, nil, map[string]string{debian: "x\n" + added}},
		{"all", map[string]string{debian: other, library: other, fedora: ""}, nil, map[string]string{debian: other + added, library: other + added, fedora: added}},
		{"has it", map[string]string{debian: certificate + other}, nil, map[string]string{debian: certificate + other}},
		{"link to another bundle", map[string]string{debian: other}, map[string]string{library: "certs/ca-certificates.crt"}, map[string]string{debian: other + added}},
		{"another one", map[string]string{debian: "x\n" + bundleBegin + other + bundleEnd + "y\n"}, nil, map[string]string{debian: "x\ny\n" + added}},
		{"link elsewhere", map[string]string{"/etc/pki/real": other}, map[string]string{fedora: "../../real"}, map[string]string{"/etc/pki/real": other + added}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, content := range tt.files {
				if err := errors.Join(os.MkdirAll(filepath.Dir(root+name), 0o755), os.WriteFile(root+name, []byte(content), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			for name, target := range tt.links {
				if err := errors.Join(os.MkdirAll(filepath.Dir(root+name), 0o755), os.Symlink(target, root+name)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := trust(root, []byte("\n"+certificate), bundles()); err != nil {
					t.Fatal(err)
				}
			}
			for name, want := range tt.want {
				b, err := os.ReadFile(root + name)
				if string(b) != want || want == "" && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: %q, %v, want %q", name, b, err, want)
				}
			}
			for name := range tt.links {
				if info, err := os.Lstat(root + name); err != nil || info.Mode().Type() != fs.ModeSymlink {
					t.Errorf("%s was replaced: %v, %v", name, info, err)
				}
			}
		})
	}
}

func TestTrustRefuses(t *testing.T) {
	root := t.TempDir()
	if err := trust(root, []byte("garbage"), bundles()); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v", err)
	}
	if err := trust(root, nil, bundles()); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
		t.Errorf("made %v, %v", entries, err)
	}
	if err := errors.Join(os.MkdirAll(root+"/etc/ssl/certs", 0o755), syscall.Mkfifo(root+"/etc/ssl/certs/ca-certificates.crt", 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := trust(root, []byte(certificate), bundles()); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a FIFO: %v", err)
	}
}
