package agentvm_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mayImport has, for each package of this module, what it may import of the others. docs/internals/README.md draws the same
// picture. A package that is not named here may import nothing of ours; packages below one that is named are its own
// affair and follow its rules.
var mayImport = map[string][]string{
	"internal/machine": {
		"internal/host/atomicfile",
		"internal/host/debugenv",
		"internal/machine/native",
		"internal/machine/native/amd64",
		"internal/machine/native/arm64",
		"internal/machine/native/arm64/verify",
		"internal/machine/native/blocks",
		"internal/machine/native/verify",
		"internal/machine/riscv",
		"internal/host/private",
		"internal/machine/wasmbin",
		"wasi",
	},
	"internal/machine/native": {
		"internal/machine/native/amd64",
		"internal/machine/native/arm64",
		"internal/machine/native/arm64/verify",
		"internal/machine/native/blocks",
		"internal/machine/native/verify",
	},
	"internal/machine/native/amd64":  {"internal/machine/native/blocks", "internal/machine/riscv"},
	"internal/machine/native/arm64":  {"internal/machine/native/blocks", "internal/machine/riscv"},
	"internal/machine/native/blocks": {"internal/machine/riscv"},
	"internal/guest": {
		"internal/guest/capnprpc",
		"internal/host/errno",
		"internal/guest/guestrpc",
		"internal/host/sparsefile",
	},
	"nat": {
		"internal/host/budget",
		"internal/host/errno",
		"netstack",
	},
	"internal/daemon": {
		"egress",
		"images",
		"internal/host/atomicfile",
		"internal/guest/capnprpc",
		"internal/storage/checkpoint",
		"internal/daemon/confine",
		"internal/daemon/daemonrpc",
		"internal/host/debugenv",
		"internal/storage/disk",
		"internal/host/errno",
		"internal/share/guestfs",
		"internal/guest/guestrpc",
		"internal/host/hostfile",
		"internal/share/hostpath",
		"internal/httpserver",
		"internal/work/job",
		"internal/storage/journal",
		"internal/host/lockfile",
		"internal/host/lograte",
		"internal/share/mount",
		"internal/host/naming",
		"internal/host/origin",
		"internal/network/preview",
		"internal/host/private",
		"internal/network/reach",
		"internal/host/shortage",
		"internal/storage/snapshot",
		"internal/settings",
		"internal/host/tail",
		"internal/host/unixsocket",
		"internal/daemon/watchdog",
		"nat",
		"vm",
	},
	"vm": {
		"egress",
		"images",
		"internal/host/atomicfile",
		"internal/work/bind",
		"internal/host/budget",
		"internal/guest/capnprpc",
		"internal/share/changes",
		"internal/storage/checkpoint",
		"internal/host/debugenv",
		"internal/storage/disk",
		"internal/host/errno",
		"internal/network/router",
		"internal/guest/supervisor",
		"internal/share/guestfs",
		"internal/guest/guestrpc",
		"internal/work/headtail",
		"internal/share/hostpath",
		"internal/work/job",
		"internal/storage/journal",
		"internal/machine/kernel",
		"internal/host/lograte",
		"internal/machine",
		"internal/share/mount",
		"internal/host/private",
		"internal/network/reach",
		"internal/work/record",
		"internal/host/refcount",
		"internal/network/secret",
		"internal/storage/snapshot",
		"internal/network/vmnet",
		"internal/storage/volume",
		"nat",
		"wasi",
	},
	"internal/work/bind": {
		"internal/guest/capnprpc",
		"internal/host/errno",
	},
	"internal/share/changes": {
		"internal/share/guestfs",
		"internal/guest/guestrpc",
		"internal/share/mount",
	},
	// wires a network
	"internal/network/router": {
		"dhcp",
		"egress",
		"internal/host/budget",
		"internal/network/dns",
		"internal/guest/guestrpc",
		"internal/httpserver",
		"internal/network/reach",
		"internal/network/secret",
		"internal/network/vmnet",
		"nat",
		"netstack",
	},
	"internal/api/serve": {
		"client",
		"egress",
		"images",
		"internal/httpserver",
		"nat",
		"vm",
	},
	"internal/api/top": {
		"client",
		"egress",
		"internal/host/hostfile",
		"internal/host/termtext",
		"vm",
	},
	"internal/api/ui": {
		"client",
		"internal/httpserver",
		"internal/host/origin",
		"internal/api/serve",
		"nat",
		"vm",
	},
	"internal/api/sandboxd": {
		"client",
		"internal/httpserver",
		"vm",
	},
	"internal/network/secret": {},
	"scripts/clients": {
		"internal/api/serve",
	},
	"internal/work/record": {
		"egress",
	},
	"internal/network/reach": {
		"egress",
		"internal/guest/capnprpc",
		"internal/host/errno",
		"internal/guest/guestrpc",
		"internal/share/hostpath",
		"nat",
	},
	"internal/storage/checkpoint": {
		"internal/storage/disk",
		"internal/machine",
		"internal/host/refcount",
		"internal/host/shortage",
		"internal/storage/snapshot",
	},
	"cmd/agentvm": {
		"client",
		"egress",
		"images",
		"internal/host/atomicfile",
		"internal/imagebuild",
		"internal/share/changes",
		"internal/daemon/confine",
		"internal/daemon",
		"internal/host/debugenv",
		"internal/storage/disk",
		"internal/api/e2b",
		"internal/guest/supervisor",
		"internal/share/guestfs",
		"internal/guest/guestrpc",
		"internal/host/hostfile",
		"internal/share/hostpath",
		"internal/httpserver",
		"internal/storage/journal",
		"internal/machine/kernel",
		"internal/machine",
		"internal/api/mcp",
		"internal/share/mount",
		"internal/api/pod",
		"internal/network/preview",
		"internal/host/private",
		"internal/work/record",
		"internal/api/sandboxd",
		"internal/api/serve",
		"internal/daemon/service",
		"internal/storage/snapshot",
		"internal/settings",
		"internal/api/sshd",
		"internal/host/tail",
		"internal/host/termtext",
		"internal/api/top",
		"internal/api/ui",
		"internal/network/vmnet",
		"internal/storage/volume",
		"nat",
		"tools",
		"vm",
		"wasi",
	},
	"internal/api/sshd": {
		"client",
		"internal/host/atomicfile",
		"internal/share/guestfs",
		"internal/guest/guestrpc",
		"internal/host/private",
		"vm",
	},
	"internal/imagebuild": {
		"egress",
		"images",
		"internal/host/atomicfile",
		"internal/host/httpretry",
		"internal/host/private",
		"vm",
	},
	"internal/api/e2b": {
		"client",
		"egress",
		"internal/httpserver",
		"internal/host/naming",
		"internal/network/reach",
		"vm",
	},
	"internal/api/pod": {
		"client",
		"egress",
		"internal/host/atomicfile",
		"internal/api/e2b",
		"internal/httpserver",
	},
	"internal/api/agenttool": {
		"internal/storage/journal",
		"vm",
	},
	"tools": {
		"client",
		"internal/api/agenttool",
		"internal/work/headtail",
		"vm",
	},
	"internal/api/mcp": {
		"client",
		"egress",
		"internal/api/agenttool",
		"internal/httpserver",
		"internal/storage/journal",
		"nat",
		"vm",
	},
	"client": {
		"egress",
		"images",
		"internal/host/atomicfile",
		"internal/guest/capnprpc",
		"internal/daemon/confine",
		"internal/daemon",
		"internal/daemon/daemonrpc",
		"internal/share/guestfs",
		"internal/guest/guestrpc",
		"internal/work/headtail",
		"internal/storage/journal",
		"internal/storage/objectstore",
		"internal/storage/snapshot",
		"internal/storage/statestore",
		"internal/host/tail",
		"nat",
		"vm",
	},
	"cmd/agentvm-guest": {"internal/guest"},
	"integration": {
		"client",
		"dhcp",
		"egress",
		"images",
		"images/storetest", // where a user's folder is
		"internal/guest/capnprpc",
		"internal/daemon",
		"internal/network/dns",
		"internal/guest/supervisor",
		"internal/guest/guestrpc",
		"internal/machine/kernel",
		"internal/machine",
		"internal/share/mount",
		"internal/storage/objectstore",
		"internal/network/preview",
		"internal/storage/snapshot",
		"internal/storage/statestore",
		"internal/network/vmnet",
		"nat",
		"netstack",
		"vm",
		"wasi",
	},
	"scripts": {
		"images",
		"internal/machine",
		"internal/machine/riscv",
	},

	// Leaves.
	"dhcp": nil,

	"internal/machine/native/arm64/verify": nil,
	"internal/machine/native/verify":       nil,

	"internal/storage/disk": {
		"internal/host/atomicfile",
		"internal/host/hostfile",
		"internal/host/lockfile",
	},
	"internal/network/dns":        nil,
	"internal/network/servername": nil,
	"internal/network/vmnet":      {"internal/host/atomicfile", "internal/host/errno", "internal/host/lockfile", "internal/host/naming", "internal/host/private", "internal/host/unixsocket"},
	"internal/storage/volume":     {"internal/host/lockfile", "internal/host/naming", "internal/host/private"},
	"egress":                      {"internal/host/errno", "internal/network/servername"},
	"internal/machine/riscv":      nil,
	"internal/guest/supervisor":   nil,
	"images": {
		"egress",
		"internal/host/atomicfile",
		"internal/storage/chunked",
		"internal/host/errno",
		"internal/host/hostfile",
		"internal/host/httpretry",
		"internal/host/lockfile",
		"internal/host/private",
		"internal/host/refcount",
		"internal/host/shortage",
	},
	// for tests
	"images/storetest": {
		"images",
		"internal/test/leaktest",
	},
	"internal/host/atomicfile": {"internal/host/lockfile"},
	"internal/daemon/service":  nil,
	"internal/host/errno":      nil,
	"internal/host/budget":     nil,
	"internal/storage/chunked": nil,
	"internal/work/headtail":   nil,
	"internal/host/httpretry":  nil,
	"internal/host/lockfile":   nil,
	"internal/host/origin":     nil,
	"internal/daemon/confine":  nil,
	"internal/host/debugenv":   nil,
	"internal/httpserver":      nil,
	"internal/host/hostfile":   nil,
	"internal/share/hostpath": {
		"internal/host/atomicfile",
		"internal/host/lockfile",
		"internal/host/private",
	},
	"internal/host/naming":     nil,
	"internal/host/refcount":   nil,
	"internal/host/sparsefile": nil,
	"internal/host/unixsocket": nil,
	"internal/machine/wasmbin": nil,
	"internal/host/tail":       nil,
	"internal/host/lograte":    nil,
	"internal/host/termtext":   nil,
	"internal/host/private": {
		"internal/host/atomicfile",
		"internal/host/hostfile",
	},
	"internal/host/shortage":   {"internal/host/errno"},
	"internal/test/leaktest":   nil, // this and the next three are for tests
	"internal/test/qemutest":   nil,
	"internal/test/smalldisk":  nil,
	"internal/test/testclock":  nil,
	"internal/daemon/watchdog": nil,
	"internal/work/job": {
		"internal/host/atomicfile",
		"internal/guest/capnprpc",
		"internal/host/errno",
		"internal/guest/guestrpc",
		"internal/storage/journal",
		"internal/host/private",
		"internal/host/shortage",
	},
	"internal/storage/journal":      nil,
	"internal/machine/kernel":       nil,
	"internal/share/mount/fusetest": {"internal/host/errno"}, // for tests
	"internal/share/mount": {
		"internal/host/budget",
		"internal/daemon/confine", // for tests
		"internal/host/errno",
		"internal/host/hostfile",
		"internal/share/hostpath",
		"internal/share/mount/protect",
	},
	"internal/share/mount/protect": nil,
	"netstack":                     {"internal/host/budget"},
	"internal/network/preview": {
		"internal/host/atomicfile",
		"internal/httpserver",
		"internal/host/origin",
		"internal/host/private",
	},
	"internal/settings": {"egress", "internal/share/mount", "nat", "vm"},
	"internal/guest/capnprpc": {
		"internal/host/budget",
		"internal/host/errno",
	},
	"internal/guest/capnprpc/rpctest": nil, // for tests
	"internal/guest/guestrpc": {
		"internal/host/budget",
		"internal/guest/capnprpc",
		"internal/host/errno",
	},
	"internal/share/guestfs": {
		"internal/guest/guestrpc",
		"internal/host/hostfile",
		"internal/share/hostpath",
		"internal/host/sparsefile",
	},
	"internal/daemon/daemonrpc": {
		"egress",
		"internal/guest/capnprpc",
		"internal/daemon/confine",
		"internal/host/errno",
		"internal/guest/guestrpc",
		"internal/storage/journal",
		"internal/storage/snapshot",
		"vm",
	},
	// the disk beside a snapshot shares its layers with the disks of VMs
	"internal/storage/objectstore": {"internal/host/atomicfile"},
	"internal/storage/statestore": {
		"internal/host/naming",
		"internal/storage/objectstore",
		"internal/host/private",
		"internal/storage/snapshot",
	},
	"internal/storage/snapshot": {
		"internal/host/atomicfile",
		"internal/storage/disk",
		"internal/host/hostfile",
		"internal/host/lockfile",
		"internal/host/naming",
		"internal/host/private",
	},
	"wasi": {
		"internal/host/errno",
		"internal/host/hostfile",
		"internal/machine/wasmbin",
	},
}

// reserved are packages of others that only some of ours may import: what reaches the network, and what must not show
// outside of the packages that speak it. net/http serves, in gateway, the page that tells a guest what was denied, and
// in daemon the metrics; reach has the client for servers in a VM, of which vm and cmd/agentvm use the types.
var reserved = map[string][]string{
	"net/http":                                     {"client", "cmd/agentvm", "internal/daemon", "images", "integration", "internal/imagebuild", "internal/host/httpretry", "internal/httpserver", "internal/api/e2b", "internal/network/router", "internal/api/mcp", "internal/storage/objectstore", "internal/host/origin", "internal/api/pod", "internal/network/preview", "internal/network/reach", "internal/api/sandboxd", "internal/network/secret", "internal/api/serve", "internal/network/servername", "internal/api/ui", "vm"},
	"modernc.org/sqlite":                           {"internal/network/preview"},
	"github.com/modelcontextprotocol/go-sdk":       {"integration", "internal/api/mcp"},
	"github.com/prometheus":                        {"internal/daemon"},
	"capnproto.org/go/capnp/v3":                    {"internal/guest/capnprpc", "internal/daemon/daemonrpc", "internal/guest/guestrpc"},
	"gvisor.dev/gvisor":                            {"cmd/agentvm", "netstack"}, // the program turns its log off
	"gvisor.dev/gvisor/pkg/tcpip":                  {"netstack"},
	"github.com/miekg/dns":                         {"internal/network/dns"},
	"github.com/insomniacslk/dhcp":                 {"dhcp"},
	"github.com/insomniacslk/dhcp/dhcpv4/server4":  {}, // opens sockets of its own
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4": {},
	"github.com/gopacket/gopacket":                 {"integration", "netstack"},
	"golang.org/x/net/icmp":                        {"egress"},

	"google.golang.org/grpc": {}, // it links html/template, too

	// These find methods by their names, so the linker leaves out no method of anything: agentvm was a fifth larger with them.
	"html/template": {},
	"text/template": {},
}

// forTests are packages that every test may import, and that import nothing but what they help to test.
var forTests = []string{"images/imagestest", "images/storetest", "internal/share/guestfs/guestfstest", "internal/guest/capnprpc/rpctest", "internal/test/leaktest", "internal/share/mount/fusetest", "internal/test/qemutest", "internal/test/smalldisk", "internal/test/testclock", "netstack/netstacktest"}

// testsMayImport has what the tests of a package may import beyond what the package itself may: the real part at the other end.
var testsMayImport = map[string][]string{
	"dhcp":                     {"netstack"},                                                                   // a guest's network
	"integration":              {"internal/storage/disk", "internal/network/router", "internal/network/reach"}, // the network at the socket of an exported module
	"internal/guest/capnprpc":  {"internal/guest/guestrpc"},                                                    // its schema has an interface with streams
	"internal/daemon":          {"netstack"},
	"internal/httpserver":      {"client", "internal/api/e2b", "internal/api/mcp", "internal/api/serve", "internal/api/ui"},                                   // the servers
	"internal/storage/disk":    {"internal/machine/kernel", "internal/machine", "wasi"},                                                                       // Linux mounts what was written
	"internal/guest":           {"images", "internal/storage/disk", "internal/guest/supervisor", "internal/machine/kernel", "internal/machine", "vm", "wasi"}, // runs as PID 1 of a machine
	"internal/network/router":  {"wasi"},                                                                                                                      // the stream of a machine's network
	"internal/share/guestfs":   {"internal/guest", "internal/guest/capnprpc"},                                                                                 // the real service of files
	"internal/machine":         {"internal/machine/kernel"},
	"internal/machine/native":  {"internal/machine/riscv"}, // code to translate
	"internal/host/unixsocket": {"internal/host/private"},  // a folder that no other user enters
	"internal/api/serve":       {"internal/daemon"},        // its program is the daemons, too
	"netstack":                 {"wasi"},                   // the stream of a machine's network
	"vm":                       {"internal/guest"},

	"internal/machine/native/arm64/verify": {"internal/machine/native/arm64", "internal/machine/native/blocks", "internal/machine/riscv"}, // code to change
	"internal/machine/native/verify":       {"internal/machine/native/amd64", "internal/machine/riscv"},                                   // code to change
}

// reservedInTests adds to reserved for tests.
var reservedInTests = map[string][]string{
	"net/http":                               {"internal/storage/statestore"}, // an object store
	"github.com/modelcontextprotocol/go-sdk": {"cmd/agentvm"},                 // a client
	"google.golang.org/grpc":                 {"internal/api/sandboxd"},       // a client
	"github.com/miekg/dns":                   {"integration"},                 // a server of names for guests to ask
	"gvisor.dev/gvisor/pkg/tcpip":            {"nat"},                         // a second stack, as the guest's
}

type goPackage struct {
	ImportPath string
	Imports    []string

	TestImports, XTestImports []string // of its tests inside and outside of the package
}

func TestImports(t *testing.T) {
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module(t)+"/")
		owner := ownerOf(name)
		if _, known := mayImport[owner]; !known {
			continue // throw-away programs that are not part of the tree
		}
		for _, path := range p.Imports {
			if problem := checkImport(t, owner, path, false); problem != "" {
				t.Errorf("%s imports %s", name, problem)
			}
		}
		for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
			if problem := checkImport(t, owner, path, true); problem != "" {
				t.Errorf("a test of %s imports %s", name, problem)
			}
		}
	}
}

// module is the path of this module, which whoever hosts a copy of it can change with scripts/rename-module.
func module(t *testing.T) string {
	t.Helper()
	line := regexp.MustCompile(`(?m)^module (\S+)$`).FindStringSubmatch(read(t, "go.mod"))
	if line == nil {
		t.Fatal("go.mod has no module line")
	}
	return line[1]
}

// ownerOf is the longest name in mayImport that name is, or is below.
func ownerOf(name string) string {
	for n := name; n != "."; {
		if _, known := mayImport[n]; known {
			return n
		}
		i := strings.LastIndexByte(n, '/')
		if i < 0 {
			break
		}
		n = n[:i]
	}
	return name
}

// checkImport says what is wrong with a package, or a test of it, importing path.
func checkImport(t *testing.T, owner, path string, test bool) (problem string) {
	if imported, ours := strings.CutPrefix(path, module(t)+"/"); ours {
		of := ownerOf(imported)
		allowed := of == owner || slices.Contains(mayImport[owner], of)
		if test && (slices.Contains(testsMayImport[owner], of) || slices.Contains(forTests, imported)) {
			allowed = true
		}
		if !allowed {
			return imported + ", which docs/internals/README.md does not allow"
		}
	}
	within := func(prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }
	for prefix, users := range reserved {
		if !within(prefix) || slices.Contains(users, owner) {
			continue
		}
		allowed := false
		for prefix, users := range reservedInTests {
			allowed = allowed || test && within(prefix) && slices.Contains(users, owner)
		}
		if !allowed {
			return path + ", which is reserved for " + strings.Join(users, ", ")
		}
	}
	return ""
}

func TestCheckImport(t *testing.T) {
	for _, test := range []struct {
		owner, path string
		test, ok    bool
	}{
		{"netstack", "OURS/internal/host/budget", false, true},
		{"netstack", "OURS/wasi", false, false},
		{"netstack", "OURS/wasi", true, true},
		{"netstack", "OURS/vm", true, false},
		{"netstack", "OURS/internal/test/leaktest", true, true},
		{"netstack", "OURS/internal/test/leaktest", false, false},
		{"netstack", "gvisor.dev/gvisor/pkg/tcpip/stack", false, true},
		{"nat", "gvisor.dev/gvisor/pkg/tcpip/stack", false, false},
		{"nat", "gvisor.dev/gvisor/pkg/tcpip/stack", true, true},
		{"nat", "gvisor.dev/gvisor/pkg/sleep", true, false},
		{"dhcp", "net/http", true, false},
	} {
		if problem := checkImport(t, test.owner, strings.Replace(test.path, "OURS", module(t), 1), test.test); (problem == "") != test.ok {
			t.Errorf("%s imports %s, in a test %t: %q", test.owner, test.path, test.test, problem)
		}
	}
}

// TestEveryPackageHasRules finds a new package that nobody has thought about.
func TestEveryPackageHasRules(t *testing.T) {
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module(t)+"/")
		if _, known := mayImport[ownerOf(name)]; !known && name != module(t) && !strings.HasPrefix(name, "scratch/") {
			t.Errorf("%s is not in mayImport: say what it may import", name)
		}
	}
}

// listPackages lists the module as built for Linux, where all of it is.
func listPackages(t *testing.T) (list []goPackage) {
	t.Helper()
	command := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	command.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 10 {
		t.Fatalf("go list found %d packages", len(list))
	}
	return list
}
