package vm_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/vm"
)

// issue makes a CA, in PEM, and a certificate of it for a name.
func issue(t testing.TB, name string) ([]byte, tls.Certificate) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	sign := func(template, parent *x509.Certificate, of, by *ecdsa.PrivateKey) []byte {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &of.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	caKey, leafKey := key(), key()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	ca.Subject.CommonName = "test CA"
	caDER := sign(ca, ca, caKey, caKey)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}),
		tls.Certificate{Certificate: [][]byte{sign(leaf, ca, leafKey, caKey)}, PrivateKey: leafKey}
}

// needAlpine skips a test that uses programs which the built-in root does not have.
func needAlpine(t *testing.T) {
	t.Helper()
	if kit.store.Image(t) == images.BuiltinName {
		t.Skip("the built-in root has no such program")
	}
}

func TestCACertificate(t *testing.T) {
	needAlpine(t)
	ca, leaf := issue(t, egress.HostName)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{leaf}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the client that does not trust it
	server.StartTLS()
	t.Cleanup(server.Close)
	port := netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	line := fmt.Sprintf("wget -q -O - https://%s:%d/", egress.HostName, port)
	open := vm.Network{HostPorts: []uint16{port}}
	v := ownVM(t, func(c *vm.Config) { c.Network, c.CACertificate = open, ca })
	wantOutput(t, v, line, "secret")
	wantOutput(t, v, "test $(grep -c BEGIN /etc/ssl/certs/ca-certificates.crt) -gt 50 && echo kept", "kept\n")
	v = ownVM(t, func(c *vm.Config) { c.Network = open })
	if r := mustRun(t, v, vm.Command{Line: line}); r.ExitCode == 0 || !strings.Contains(string(r.Stderr), "certificate") {
		t.Errorf("without the CA: %+v", r)
	}
}

// TestNoNewPrivileges has a user read root's file with a program that has root's set-user-ID bit.
func TestNoNewPrivileges(t *testing.T) {
	needAlpine(t)
	const line = "cp /usr/bin/iconv /var/tmp/read && chmod 4755 /var/tmp/read && cd /var/tmp && umask 077 && echo secret >file && " +
		"su games -s /bin/sh -c '/var/tmp/read -f utf-8 -t utf-8 /var/tmp/file'"
	wantOutput(t, ownVM(t, nil), line, "secret\n")
	r := mustRun(t, ownVM(t, func(c *vm.Config) { c.NoNewPrivileges = true }), vm.Command{Line: line})
	if r.ExitCode == 0 || len(r.Stdout) > 0 || !strings.Contains(string(r.Stderr), "Permission denied") {
		t.Errorf("got %+v", r)
	}
}

// wantReadOnlyRoot checks that programs and CopyTo change files only where there are other file systems than the root.
func wantReadOnlyRoot(t *testing.T, v *vm.VM) {
	t.Helper()
	r := mustRun(t, v, vm.Command{Line: "touch /new /etc/hosts /root/x; echo x >/etc/resolv.conf"})
	if r.ExitCode == 0 || strings.Count(string(r.Stderr), "Read-only file system") != 4 {
		t.Errorf("the root can be changed: %+v", r)
	}
	wantOutput(t, v, "touch /tmp/a /run/b /dev/shm/c /data/d && grep -c nameserver /etc/resolv.conf && test -s /etc/machine-id && echo ok", "1\nok\n")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := v.CopyTo(limited(t), file, "/root/file", vm.CopyOptions{}); !errors.Is(err, syscall.EROFS) {
		t.Errorf("copied: %v", err)
	}
	if _, err := v.CopyTo(limited(t), file, "/tmp/file", vm.CopyOptions{}); err != nil {
		t.Error(err)
	}
}

// A read-only root is as configured when it begins, with a disk and without, and stays so in forks and what is restored, until a
// configuration says otherwise.
func TestReadOnlyRoot(t *testing.T) {
	ca, _ := issue(t, egress.HostName)
	shared := func(c *vm.Config) {
		c.Mounts, c.ReadOnlyRoot = []vm.Mount{{HostPath: t.TempDir(), GuestPath: "/data"}}, true
	}
	path := filepath.Join(t.TempDir(), "disk")
	if err := vm.CreateDisk(path, 0); err != nil {
		t.Fatal(err)
	}
	v := ownVM(t, func(c *vm.Config) { shared(c); c.Disk, c.CACertificate = path, ca })
	wantReadOnlyRoot(t, v)
	wantOutput(t, v, "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt >/dev/null && echo there", "there\n")
	if err := v.Stop(limited(t)); err != nil {
		t.Error(err)
	}
	wantOutput(t, ownVM(t, func(c *vm.Config) { c.Disk = path }), "touch /root/x && echo ok", "ok\n")

	v = ownVM(t, shared)
	if _, err := v.Start(limited(t), vm.Command{Line: "while :; do date >/tmp/now; sleep 0.1; done"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, v, "test -s /tmp/now")
	f := fork(t, v, 1, vm.ForkOptions{KeepPrograms: true})[0]
	wantReadOnlyRoot(t, f)
	waitFor(t, f, "rm /tmp/now; sleep 0.5; test -s /tmp/now")
	saved := save(t, v, vm.SnapshotOptions{})
	wantReadOnlyRoot(t, restore(t, saved, shared, vm.RestoreOptions{}))
	writable := restore(t, saved, func(c *vm.Config) { shared(c); c.ReadOnlyRoot = false }, vm.RestoreOptions{})
	wantOutput(t, writable, "touch /root/x && echo ok", "ok\n")

	if _, err := writable.Start(limited(t), vm.Command{Line: "while :; do date; sleep 0.1; done >/root/log"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, writable, "test -s /root/log")
	saved = save(t, writable, vm.SnapshotOptions{})
	wantReadOnlyRoot(t, restore(t, saved, shared, vm.RestoreOptions{}))
	c := config(t)
	c = vm.Config{StoreDir: c.StoreDir}
	shared(&c)
	if kept, err := vm.Restore(limited(t), saved, c, vm.RestoreOptions{KeepPrograms: true}); err == nil || !strings.Contains(err.Error(), "files of it open for writing") {
		t.Errorf("a program that was kept writes to the root: %v", err)
		if err == nil {
			kept.Close()
		}
	}
}

func TestUnixSockets(t *testing.T) {
	needAlpine(t)
	dir, err := os.MkdirTemp("", "s") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := filepath.Join(dir, "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			b, _ := io.ReadAll(c)
			_, _ = fmt.Fprintf(c, "%d bytes", len(b))
			_ = c.Close()
		}
	}()
	w := newWorld(t)
	v := ownVM(t, func(c *vm.Config) {
		c.UnixSockets = []vm.UnixSocket{{Host: at, Guest: "/run/host.sock", Mode: 0o600}, {Host: filepath.Join(dir, "gone"), Guest: "/run/gone"}}
		c.Network.Audit = w.audit
	})
	wantOutput(t, v, "stat -c '%a %F' /run/host.sock", "600 socket\n")
	wantOutput(t, v, "head -c 3000000 /dev/zero | nc local:/run/host.sock", "3000000 bytes")
	wantOutput(t, v, "echo x | nc local:/run/gone; true", "")
	if r := mustRun(t, v, vm.Command{Line: "echo x | nc local:" + at}); r.ExitCode == 0 {
		t.Errorf("the host's own path: %+v", r)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range w.events {
		if e.Kind == egress.KindUnix {
			got = append(got, e.Verdict+" "+e.Names[0])
		}
	}
	if want := "[allow /run/host.sock error /run/gone]"; fmt.Sprint(got) != want {
		t.Errorf("audited %v, want %v", got, want)
	}
}
