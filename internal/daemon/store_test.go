package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentvm/egress"
	"agentvm/nat"
	"agentvm/vm"
)

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "0": true, "dev": true, "a-b_c.d": true, strings.Repeat("a", 63): true,
		"": false, ".": false, "..": false, ".a": false, "-a": false, "_a": false, "A": false, "a/b": false, `a\b`: false,
		"a b": false, "ä": false, "a\x00": false, strings.Repeat("a", 64): false, "a:b": false, "con/../x": false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestConfigJSON(t *testing.T) {
	rule, err := egress.ParseRule("*.example.com:443")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Config: vm.Config{
			Image: "alpine", Memory: 1 << 30, HostMemory: 64 << 20, Env: []string{"A=1"}, NoNewPrivileges: true, ReadOnlyRoot: true,
			Mounts: []vm.Mount{{HostPath: filepath.Join(t.TempDir(), "x"), GuestPath: "/y", ReadOnly: true, Masks: []string{".env"}}},
			Network: vm.Network{
				Policy: egress.Policy{Allow: []egress.Rule{rule}}, HostPorts: []uint16{80},
				Forwards: []nat.Forward{{Protocol: "tcp", Listen: netip.AddrPortFrom(netip.Addr{}, 8080), GuestPort: 80}},
			},
			UnixSockets: []vm.UnixSocket{{Host: filepath.Join(os.TempDir(), "s"), Guest: "/run/s", Mode: 0o600}},
			Access:      vm.Access{Listen: vm.PortPolicy{Deny: []vm.PortRange{{First: 5, Last: 7}}}, LoopbackExemptPorts: []uint16{9}},
		},
		CaptureFile: filepath.Join(os.TempDir(), "pcap"), NetworkLog: filepath.Join(os.TempDir(), "log"),
		Sidecars: []Sidecar{{Name: "a", Args: []string{"b"}, Env: []string{"C=1"}, User: "d", Restart: OnFailure, Backoff: Duration(time.Second)}},
		DiskSize: -1, IdleTimeout: Duration(90 * time.Second), Labels: map[string]string{"a": "b"},
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	if err := writeConfig(path, c); err != nil {
		t.Fatal(err)
	}
	got, err := readConfig(path)
	if diff := cmp.Diff(c, got, cmp.Comparer(func(a, b egress.Rule) bool { return a.String() == b.String() }), cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}, netip.AddrPort{}), cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(vm.Config{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if b, _ := os.ReadFile(path); !bytes.Contains(b, []byte(`"idleTimeout": "1m30s"`)) || !bytes.Contains(b, []byte(`"*.example.com:443"`)) {
		t.Errorf("%s", b)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// What earlier versions have written is read, and written as it was.
func TestConfigFormat(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the paths are those of Unix")
	}
	const text = `{"memory":536870912,"sockets":["/run/s:/run/s:0600"],"mounts":["/a:/b:ro:mask=.env:mask=.git/hooks"],` +
		`"network":{"policy":{"mode":"none"},"hostPorts":[1],"forwards":["3:4","127.0.0.2:53:53/udp"],"resolvers":["9.9.9.9:53"],` +
		`"subnet":"10.0.0.0/24","mtu":1400,"sendLimit":5,"limits":{"tcpFlows":6},"capture":"/c","log":"/l"},` +
		`"access":{"listenAllow":["3000-3999"],"connectDeny":["25"],"loopbackExemptPorts":[8080]},"caCertificate":"/ca","idleTimeout":"1m30s"}`
	var c Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	if m := c.Mounts[0]; !m.ReadOnly || m.HostPath != "/a" || !slices.Equal(m.Masks, []string{".env", ".git/hooks"}) {
		t.Errorf("%+v", m)
	}
	if c.CAFile != "/ca" || c.CaptureFile != "/c" || c.NetworkLog != "/l" || c.Access.Connect.Deny[0].First != 25 || c.UnixSockets[0].Mode != 0o600 || c.Network.Forwards[1].Protocol != "udp" || c.Network.Limits.TCPFlows != 6 {
		t.Errorf("%+v", c)
	}
	again, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal([]byte(text), &want), json.Unmarshal(again, &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("written again (-want +got):\n%s", diff)
	}
	for _, bad := range []string{`{"mounts":["/a:b"]}`, `{"mounts":["/a:/b:mask=../z"]}`, `{"sockets":["/s:y"]}`, `{"sockets":["s:/y"]}`, `{"network":{"forwards":["x"]}}`} {
		if err := json.Unmarshal([]byte(bad), &c); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	for name, c := range map[string]Config{
		"relative mount":    {Config: vm.Config{Mounts: []vm.Mount{{HostPath: "x", GuestPath: "/y"}}}},
		"relative capture":  {CaptureFile: "x"},
		"forward":           {Config: vm.Config{Network: vm.Network{Forwards: []nat.Forward{{}}}}},
		"negative idle":     {IdleTimeout: -1},
		"MTU":               {Config: vm.Config{Network: vm.Network{MTU: 5}}},
		"memory":            {Config: vm.Config{Memory: 1 << 20}},
		"memory on host":    {Config: vm.Config{HostMemory: 1 << 20}},
		"environment":       {Config: vm.Config{Env: []string{"A"}}},
		"relative log":      {NetworkLog: "x"},
		"relative CA":       {CAFile: "x"},
		"missing CA":        {CAFile: filepath.Join(os.TempDir(), "no", "such")},
		"relative socket":   {Config: vm.Config{UnixSockets: []vm.UnixSocket{{Host: "x", Guest: "/y"}}}},
		"socket":            {Config: vm.Config{UnixSockets: []vm.UnixSocket{{Host: filepath.Join(os.TempDir(), "x"), Guest: "y"}}}},
		"sidecar":           {Sidecars: []Sidecar{{Name: "x"}}},
		"library's capture": {Config: vm.Config{Network: vm.Network{Capture: io.Discard}}},
		"library's CA":      {Config: vm.Config{CACertificate: []byte("x")}},
		"library's disk":    {Config: vm.Config{Disk: "/x"}},
	} {
		if err := c.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func validState() state {
	return state{Version: protocolVersion, Name: "dev", Pid: 1, Address: "127.0.0.1:80", Token: testToken}
}

func TestParseState(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*state)
		want   string
	}{
		{"right", func(*state) {}, ""},
		{"socket", func(s *state) { s.Address = "unix:daemon.sock" }, ""},
		{"another socket", func(s *state) { s.Address = "unix:../other/daemon.sock" }, "want unix:daemon.sock or 127.0.0.1:PORT"},
		{"another's name", func(s *state) { s.Name = "other" }, `"other"`},
		{"no process", func(s *state) { s.Pid = 0 }, "process 0"},
		{"another host", func(s *state) { s.Address = "192.0.2.1:80" }, "or 127.0.0.1:PORT"},
		{"a name", func(s *state) { s.Address = "localhost:80" }, "or 127.0.0.1:PORT"},
		{"another loopback address", func(s *state) { s.Address = "127.0.0.2:80" }, "or 127.0.0.1:PORT"},
		{"no port", func(s *state) { s.Address = "127.0.0.1:0" }, "or 127.0.0.1:PORT"},
		{"short token", func(s *state) { s.Token = testToken[2:] }, "32 bytes"},
		{"no token", func(s *state) { s.Token = "" }, "32 bytes"},
		{"token of other characters", func(s *state) { s.Token = "x" + testToken[1:] }, "32 bytes"},
		{"old version", func(s *state) { s.Version = 0 }, "daemon speaks protocol 0 and this program protocol 2"},
		{"new version", func(s *state) { s.Version, s.Pid, s.Program = 3, 7, "old" }, "daemon speaks protocol 3 and this program protocol 2: stop the VM with the program that started it (agentvm \"old\"), or end its process (pid 7), and start it again"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := validState()
			test.change(&s)
			b, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			_, err = parseState("dev", b)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzParseState(f *testing.F) {
	b, _ := json.Marshal(validState())
	f.Add(b)
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseState("dev", b); err == nil && (s.Address != socketAddress && !strings.HasPrefix(s.Address, "127.0.0.1:") || len(s.Token) != 64 || s.Name != "dev") {
			t.Errorf("accepted %+v", s)
		}
	})
}

// TestStateFile: only its user can read what a daemon publishes, and each daemon has another token.
func TestStateFile(t *testing.T) {
	seen := make(map[string]bool)
	for range 3 {
		d := startInside(t, Config{}, timing{}, nil)
		s, err := d.paths().readState("dev")
		if err != nil || s.Pid != os.Getpid() || s.Program != "test" || seen[s.Token] {
			t.Errorf("%+v, %v", s, err)
		}
		seen[s.Token] = true
		if info, err := os.Stat(d.paths().state()); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
}

// TestStateChanges: when the state file changes between its two readings, the client shows the token to no server.
func TestStateChanges(t *testing.T) {
	d := startInside(t, Config{}, timing{stateCheck: time.Hour}, nil)
	p := d.paths()
	right, err := p.readState("dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		change func(*state)
		want   string
	}{
		{"token", func(s *state) { s.Token = testToken }, "the token in the state file has changed"},
		{"pid", func(s *state) { s.Pid++ }, "the state file has changed"},
		{"address", func(s *state) { s.Address = "127.0.0.1:9" }, "the state file has changed"},
		{"version", func(s *state) { s.Version = 3 }, "protocol 3"},
	} {
		now := right
		test.change(&now)
		if err := p.writeState(now); err != nil {
			t.Fatal(err)
		}
		if _, err := d.store.dial(t.Context(), "dev", p, right); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := os.Remove(p.state()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.store.dial(t.Context(), "dev", p, right); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted: %v", err)
	}
	if s := d.status(t); s.State != Starting || s.Info != nil {
		t.Errorf("status without a state file: %+v", s)
	}
	d.stop()
	_ = d.wait(t)
}

// TestForeignState: a state file that leads to another program's port is not used, because that program does not hold the lock.
func TestForeignState(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	p, _ := s.paths("dev")
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other := validState()
	other.Pid = os.Getpid() // it lives
	if err := errors.Join(writeConfig(p.config(), Config{}), p.writeState(other)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connect(t.Context(), "dev"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("connect: %v", err)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != Crashed {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := os.Stat(p.state()); !os.IsNotExist(err) {
		t.Errorf("the state file: %v", err)
	}
}

func TestNoSuchVM(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "none")}
	if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	_, connectErr := s.Connect(t.Context(), "dev")
	_, statusErr := s.Status(t.Context(), "dev")
	_, configErr := s.Config("dev")
	for _, err := range []error{connectErr, statusErr, configErr, s.Remove(t.Context(), "dev")} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := s.Connect(t.Context(), "../x"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a name that is none: %v", err)
	}
}

func TestRemove(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	if err := d.store.Remove(t.Context(), "dev"); !errors.Is(err, ErrRunning) {
		t.Errorf("while it runs: %v", err)
	}
	d.stop()
	_ = d.wait(t)
	if err := d.store.Remove(t.Context(), "dev"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(d.store.Dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestRemoveWhileListed: who looks at VMs meanwhile keeps no part of one that is removed.
func TestRemoveWhileListed(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	p, err := s.paths("dev")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	for range 4 {
		looking.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.List(ctx)
			}
		})
	}
	for range 200 {
		if err := errors.Join(os.MkdirAll(p.dir, 0o700), writeConfig(p.config(), Config{})); err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), "dev"); err != nil {
			t.Error(err)
			break
		}
		if _, err := os.Lstat(p.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
			break
		}
	}
	cancel()
	looking.Wait()
}

// TestRemoveWhileOneLooks: a command that looks for long is not taken for a daemon.
func TestRemoveWhileOneLooks(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	p, err := s.paths("dev")
	if err == nil {
		err = errors.Join(os.MkdirAll(p.dir, 0o700), writeConfig(p.config(), Config{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	alive, looked, err := probe(p)
	if alive || err != nil {
		t.Fatal(alive, err)
	}
	time.AfterFunc(lockTime/2, func() { _ = looked() })
	if err := s.Remove(t.Context(), "dev"); err != nil {
		t.Error(err)
	}
}

// TestListTogether: concurrent lists of a dead VM do not take each other for its daemon.
func TestListTogether(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.stop()
	_ = d.wait(t)
	var looking sync.WaitGroup
	for range 20 {
		looking.Go(func() {
			for range 20 {
				if s, err := d.store.Status(context.Background(), "dev"); err != nil || s.State != Stopped {
					t.Errorf("%+v, %v", s, err)
				}
			}
		})
	}
	looking.Wait()
}

// TestFailedBeforeUnlock asks for a daemon whose VM has failed, right before it releases its lock.
func TestFailedBeforeUnlock(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.stop()
	_ = d.wait(t)
	unlock, err := lockFile(t.Context(), d.paths().lock(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for end, want := range map[string]State{"": Stopping, "no such image": Failed} {
		if err := d.paths().writeEnd(ending{Error: end}); err != nil {
			t.Fatal(err)
		}
		if s, err := d.store.Status(t.Context(), "dev"); err != nil || s.State != want || s.Error != end {
			t.Errorf("an end with %q: %+v, %v", end, s, err)
		}
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

func TestLogRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := openLog(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	other, err := openAppend(path) // the process's standard error
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(l, nil))
	for i := range 100 {
		logger.Info("line", "n", i)
	}
	if _, err := fmt.Fprintln(other, "panic: at last"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(l.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	now, err := os.ReadFile(path)
	before, err2 := os.ReadFile(path + ".1")
	if err != nil || err2 != nil || len(now) > 1100 || len(before) > 1100 || !bytes.HasSuffix(now, []byte("panic: at last\n")) {
		t.Errorf("%v, %v, %d and %d bytes:\n%s", err, err2, len(now), len(before), now)
	}
	if all := string(before) + string(now); !strings.Contains(all, "n=99") || !strings.Contains(all, "n=90") {
		t.Errorf("lines are missing:\n%s", all)
	}
	tail, err := readTail(path, 8)
	if err != nil || string(tail) != "at last\n" {
		t.Errorf("%q, %v", tail, err)
	}
}

func TestIdentity(t *testing.T) {
	p := paths{t.TempDir()}
	if _, err := p.readIdentity(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a VM that never ran: %v", err)
	}
	made, fresh, err := p.chooseIdentity(&Restoration{Snapshot: "/x"})
	if err == nil {
		err = p.writeIdentity(made)
	}
	if err != nil || !fresh || made.check() != nil {
		t.Fatalf("%+v, %t, %v", made, fresh, err)
	}
	saved := Identity{ID: strings.Repeat("0f", 16), PreviewPort: 7}
	if again, fresh, err := p.chooseIdentity(&Restoration{Identity: &saved}); err != nil || fresh || again != made {
		t.Errorf("it has one: %+v, %t, %v, want %+v", again, fresh, err, made)
	}
	other := paths{t.TempDir()}
	if got, fresh, err := other.chooseIdentity(&Restoration{Identity: &saved}); err != nil || !fresh || got != saved {
		t.Errorf("one that takes another's place: %+v, %t, %v", got, fresh, err)
	}
	for _, bad := range []string{"", "{", `{"id":""}`, `{"id":"xy"}`, `{"id":"` + strings.Repeat("0f", 17) + `"}`, `{"id":"` + strings.Repeat("0f", 16) + `","previewPort":70000}`} {
		if err := os.WriteFile(other.identity(), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _, err := other.chooseIdentity(nil); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

// Remove deletes what a process has left that was killed while it made or removed the VM, unless the VM is being made.
func TestRemoveWhatWasLeft(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	p, err := s.paths("dev")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(p.dir, 0o700), os.WriteFile(filepath.Join(p.dir, "daemon.log"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	unlock, err := lockFile(t.Context(), p.starting(), lockTime)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "dev"); !errors.Is(err, ErrNotFound) {
		t.Errorf("while it is made: %v", err)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "daemon.log")); err != nil {
		t.Errorf("while it is made, it was removed: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "dev"); !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v, want that there is no VM", err)
	}
	if _, err := os.Lstat(p.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
