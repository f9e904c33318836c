//go:build linux

package guest

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/guestrpc"
)

func TestParseOptions(t *testing.T) {
	for _, tt := range []struct {
		name, give string
		want       options
		err        string
	}{
		{"nothing", "", options{root: "/dev/vda", hostname: "agentvm"}, ""},
		{"others' words", "console=hvc0 quiet xagentvm.root=1\n", options{root: "/dev/vda", hostname: "agentvm"}, ""},
		{"all", "agentvm.root=/dev/vdc agentvm.upper=tmpfs agentvm.hostname=h", options{root: "/dev/vdc", upper: "tmpfs", hostname: "h"}, ""},
		{"standalone", "agentvm.standalone", options{root: "/dev/vda", hostname: "agentvm", standalone: true}, ""},
		{"unknown", "agentvm.rooot=/dev/vdc", options{}, "unknown option agentvm.rooot on the kernel command line"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseOptions(tt.give)
			if got != tt.want || err == nil != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	got := environment(root, true, []string{"A=1", "LANG=de", "HOME"}, []string{"A=2", "=x", "NEW=", "GONE"})
	want := []string{"PATH=" + defaultPath, "USER=root", "LOGNAME=root", "SHELL=/bin/sh", "LANG=de", "HOSTNAME=" + hostname(), "TERM=xterm-256color", "A=2", "NEW="}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAccounts(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir + "/" + name
	}
	a := accounts{
		passwd: write("passwd", "root:x:0:0:root:/root:/bin/ash\nbroken\nbad:x:y:z:::\nann:x:1000:100::/home/ann:/bin/sh\nbob:x:1001:100:::\n"),
		group:  write("group", "users:x:100:\nwheel:x:10:root,ann\nvideo:x:27:bob,ann\nbroken:x\n"),
	}
	for _, tt := range []struct {
		give string
		want account
		err  string
	}{
		{"", root, ""},
		{"root", account{name: "root", home: "/root", shell: "/bin/ash", groups: []uint32{10, 0}}, ""},
		{"ann", account{"ann", "/home/ann", "/bin/sh", 1000, 100, []uint32{10, 27, 100}}, ""},
		{"1000", account{"ann", "/home/ann", "/bin/sh", 1000, 100, []uint32{10, 27, 100}}, ""},
		{"bob:wheel", account{"bob", "/", "/bin/sh", 1001, 10, []uint32{10}}, ""},
		{"7:8", account{"7", "/", "/bin/sh", 7, 8, []uint32{8}}, ""},
		{"bad", account{}, `no user "bad"`},
		{"ann:missing", account{}, `no group "missing"`},
		{"-1", account{}, `no user "-1"`},
	} {
		t.Run(tt.give, func(t *testing.T) {
			got, err := a.find(tt.give)
			if tt.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tt.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(account{})); diff != "" || err != nil {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
		})
	}
}

func TestStatsOfFiles(t *testing.T) {
	var s guestrpc.Stats
	readCPU(&s, "cpu  10 1 20 300 4 5 6 0 0 0\ncpu0 1\n")
	readMemory(&s, "MemTotal: 5 kB\nMemAvailable:     12 kB\n")
	readNetwork(&s, "Inter-| Receive\n face |bytes\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  eth0: 100 2 0 0 0 0 0 0 300 4 0 0 0 0 0 0\n")
	readCPU(&s, "rubbish")
	want := guestrpc.Stats{
		User: 11 * tick, System: 31 * tick, Idle: 304 * tick, MemoryAvailable: 12 << 10,
		ReceivedBytes: 100, ReceivedPackets: 2, SentBytes: 300, SentPackets: 4,
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
