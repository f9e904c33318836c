package vm

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentvm/internal/share/mount"
	"agentvm/nat"
)

func TestConfigIsChecked(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	tests := []struct {
		name   string
		config Config
		want   string // part of the error
	}{
		{"too little memory", Config{Memory: 1 << 20}, "at least 40 MiB"},
		{"too much memory", Config{Memory: 8 << 30}, "at most 3584 MiB"},
		{"too little of the host's memory", Config{HostMemory: 1 << 20}, "at least 16 MiB"},
		{"environment without =", Config{Env: []string{"PATH"}}, "want KEY=VALUE"},
		{"environment with NUL", Config{Env: []string{"A=\x00"}}, "want KEY=VALUE"},
		{"too many mounts", Config{Mounts: make([]mount.Spec, 21)}, "at most 20"},
		{"mounts in one place", Config{Mounts: []mount.Spec{{HostPath: "/a", GuestPath: "/m"}, {HostPath: "/b", GuestPath: "/m"}}}, "same place"},
		{"mount that is not there", Config{Mounts: []mount.Spec{{HostPath: missing, GuestPath: "/m"}}, Image: "busybox"}, "does not exist"},
		{"image that is not known", Config{Image: "nonsense"}, `"nonsense:latest"`},
		{"image of a bad name", Config{Image: "../../etc/passwd"}, "image name"},
		{"MTU", Config{Network: Network{MTU: 100}, Image: "busybox"}, "MTU 100"},
		{"subnet", Config{Network: Network{Subnet: netip.MustParsePrefix("192.168.0.0/30")}, Image: "busybox"}, "192.168.0.0/30"},
		{"limit", Config{Network: Network{SendLimit: -1}}, "-1 bytes a second"},
		{"limit of connections", Config{Network: Network{Limits: nat.Limits{TCPFlows: -1}}}, "tcp flows is -1; use 0 for the default (1024)"},
		{"host port", Config{Network: Network{HostPorts: []uint16{0}}}, "host port 0"},
		{"forward", Config{Network: Network{Forwards: []nat.Forward{{Listen: netip.MustParseAddrPort("127.0.0.1:0")}}}, Image: "busybox"}, "guest's port is missing"},
		{"kernel that is none", Config{Image: "busybox", Kernel: []byte("not a kernel")}, "not a Linux Image for RISC-V"},
		{"memory for no kernel", Config{Image: "busybox", Memory: MinMemory, Kernel: hugeKernel()}, "too little"},
	}
	t.Setenv("AGENTVM_REGISTRY_MIRRORS", "docker.io=http://127.0.0.1:1") // tests reach only loopback
	store := t.TempDir()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.config.StoreDir = store
			v, err := Start(context.Background(), test.config)
			if err == nil {
				v.Close()
				t.Fatal("the VM started")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q, want it to contain %q", err, test.want)
			}
		})
	}
}

// hugeKernel is a header that claims 1 GiB.
func hugeKernel() []byte {
	k := make([]byte, 64)
	k[8+2] = 0x20 // text_offset 2 MiB
	k[16+3] = 0x40
	copy(k[56:], "RSC\x05")
	return k
}

func TestStoreThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(context.Background(), Config{StoreDir: filepath.Join(file, "store")})
	if err == nil || !strings.Contains(err.Error(), "AGENTVM_STORE") {
		t.Errorf("error %v, want one that names AGENTVM_STORE", err)
	}
}

// Another directory is no advice where the directory is not what is wrong.
func TestStoreOfWrongMirror(t *testing.T) {
	t.Setenv("AGENTVM_ALPINE_MIRROR", "ftp://x")
	for _, dir := range []string{"", t.TempDir()} {
		r := &resources{}
		err := r.openStore(Config{StoreDir: dir, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "AGENTVM_ALPINE_MIRROR") || strings.Contains(err.Error(), "AGENTVM_STORE") || r.temporary != nil {
			t.Errorf("store %q: error %v, temporary store %v", dir, err, r.temporary)
		}
	}
}

func TestTemporaryStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	for name, value := range map[string]string{
		"AGENTVM_STORE": "", "HOME": file, "XDG_CACHE_HOME": filepath.Join(file, "cache"), "LocalAppData": file, "TMPDIR": temp, "TMP": temp,
	} {
		t.Setenv(name, value)
	}
	r := &resources{}
	if err := r.openStore(Config{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(r.store.Dir()) != temp {
		t.Errorf("the store is in %s", r.store.Dir())
	}
	if err := r.release(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(temp); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestLogOfAGuest has a guest come near to a limit again and again, which its host warns of: the log has some lines, and how many there would be.
func TestLogOfAGuest(t *testing.T) {
	var log bytes.Buffer
	c, err := Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		if !c.memory.Take(c.HostMemory / 10 * 9) {
			t.Fatal("there is no room")
		}
		c.memory.Give(c.HostMemory / 10 * 9)
	}
	if lines := strings.Count(log.String(), "\n"); lines == 0 || lines > 100 {
		t.Errorf("%d lines", lines)
	}
}

func TestColdBootByEnvironment(t *testing.T) {
	for value, want := range map[string]bool{"": false, "nobase": true, "timing,nobase": true, "timing, nobase": true, "nobases": false} {
		t.Setenv("AGENTVM_DEBUG", value)
		c, err := Config{}.withDefaults()
		if err != nil || c.ColdBoot != want || c.usesBase() == want {
			t.Errorf("AGENTVM_DEBUG=%q: ColdBoot %v, %v", value, c.ColdBoot, err)
		}
	}
	for name, c := range map[string]Config{
		"a disk of one's own": {Disk: "path", KernelArguments: "agentvm.upper=tmpfs"}, "kernel": {Kernel: []byte{1}}, "cold": {ColdBoot: true},
	} {
		if c.usesBase() {
			t.Errorf("%s: there would be a base", name)
		}
	}
}
