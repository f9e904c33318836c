package sshd

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"agentvm/client"
)

// noVM is a VM of which nothing may be asked.
type noVM struct{ client.AnyVM }

func newKey(t *testing.T) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// dial connects to a server that knows one key.
func dial(t *testing.T, known ssh.Signer, auth ...ssh.AuthMethod) (*ssh.Client, error) {
	t.Helper()
	host := newKey(t)
	server := New(Config{VM: noVM{}, HostKey: host, Authorized: []ssh.PublicKey{known.PublicKey()}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if conn, err := listener.Accept(); err == nil {
			_ = server.Serve(ctx, conn)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return ssh.Dial("tcp", listener.Addr().String(), &ssh.ClientConfig{
		User: "root", Auth: auth, HostKeyCallback: ssh.FixedHostKey(host.PublicKey()), Timeout: 10 * time.Second,
	})
}

func TestOnlyTheKey(t *testing.T) {
	known := newKey(t)
	for name, auth := range map[string][]ssh.AuthMethod{
		"none":        nil,
		"password":    {ssh.Password("root"), ssh.Password("")},
		"questions":   {ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return []string{""}, nil })},
		"another key": {ssh.PublicKeys(newKey(t))},
	} {
		if c, err := dial(t, known, auth...); err == nil {
			_ = c.Close()
			t.Errorf("%s: admitted", name)
		} else if !strings.Contains(err.Error(), "unable to authenticate") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := dial(t, known, ssh.PublicKeys(known))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// TestRefuses asks for what a client could use to reach more than the VM. noVM panics when it is asked.
func TestRefuses(t *testing.T) {
	known := newKey(t)
	c, err := dial(t, known, ssh.PublicKeys(known))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, address := range []string{"10.0.0.1:22", "example.com:80", "host.agentvm.internal:5432", "0.0.0.0:80", "169.254.169.254:80", "[::ffff:10.0.0.1]:80"} {
		if conn, err := c.Dial("tcp", address); err == nil {
			_ = conn.Close()
			t.Errorf("%s: connected", address)
		} else if !strings.Contains(err.Error(), "only servers in the VM") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if l, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		_ = l.Close()
		t.Error("a port listens on the client's behalf")
	}
	if _, _, err := c.OpenChannel("x11", nil); err == nil {
		t.Error("x11")
	}
	if _, _, err := c.OpenChannel("direct-tcpip", []byte("rubbish")); err == nil {
		t.Error("rubbish")
	}
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, what := range []string{"auth-agent-req@openssh.com", "x11-req", "subsystem", "signal", "exec", "nonsense"} {
		if ok, err := s.SendRequest(what, true, []byte{0, 0}); ok || err != nil {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
	}
	for name, value := range map[string]string{"A=B": "x", "": "x", "NUL": "\x00", "LONG": strings.Repeat("x", maxEnvBytes)} {
		if err := s.Setenv(name, value); err == nil {
			t.Errorf("variable %.10q was taken", name)
		}
	}
	for i := range maxEnv {
		if err := s.Setenv("V", "x"); err != nil {
			t.Fatalf("variable %d: %v", i, err)
		}
	}
	if err := s.Setenv("V", "x"); err == nil {
		t.Error("too many variables were taken")
	}
	for range maxChannels {
		if more, err := c.NewSession(); err != nil {
			return
		} else {
			defer more.Close()
		}
	}
	t.Error("too many channels were opened")
}

func TestKey(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "key")
	first, err := Key(path, "me")
	if err != nil {
		t.Fatal(err)
	}
	again, err := Key(path, "me")
	if err != nil || string(again.PublicKey().Marshal()) != string(first.PublicKey().Marshal()) {
		t.Errorf("another key: %v", err)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	known := filepath.Join(dir, "known")
	if err := WriteKnownHost(known, "dev.agentvm", first.PublicKey()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(known)
	if err != nil {
		t.Fatal(err)
	}
	if _, hosts, key, _, _, err := ssh.ParseKnownHosts(text); err != nil || len(hosts) != 1 || hosts[0] != "dev.agentvm" || string(key.Marshal()) != string(first.PublicKey().Marshal()) {
		t.Errorf("%s, %v", text, err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Key(path, "me"); err == nil {
		t.Error("a key that others can read was taken")
	}
}
