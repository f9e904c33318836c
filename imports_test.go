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
		"internal/atomicfile",
		"internal/debugenv",
		"internal/machine/native",
		"internal/machine/native/amd64",
		"internal/machine/native/arm64",
		"internal/machine/native/arm64/verify",
		"internal/machine/native/blocks",
		"internal/machine/native/verify",
		"internal/machine/riscv",
		"internal/private",
		"internal/wasmbin",
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
		"internal/capnprpc",
		"internal/errno",
		"internal/guestrpc",
		"internal/sparsefile",
	},
	"nat": {
		"internal/budget",
		"internal/errno",
		"netstack",
	},
	"internal/daemon": {
		"egress",
		"images",
		"internal/atomicfile",
		"internal/capnprpc",
		"internal/checkpoint",
		"internal/confine",
		"internal/daemonrpc",
		"internal/debugenv",
		"internal/disk",
		"internal/errno",
		"internal/guestfs",
		"internal/guestrpc",
		"internal/hostfile",
		"internal/hostpath",
		"internal/httpserver",
		"internal/job",
		"internal/journal",
		"internal/lockfile",
		"internal/lograte",
		"internal/mount",
		"internal/naming",
		"internal/origin",
		"internal/preview",
		"internal/private",
		"internal/reach",
		"internal/shortage",
		"internal/snapshot",
		"internal/spec",
		"internal/tail",
		"internal/unixsocket",
		"internal/watchdog",
		"nat",
		"vm",
	},
	"vm": {
		"egress",
		"images",
		"internal/atomicfile",
		"internal/bind",
		"internal/budget",
		"internal/capnprpc",
		"internal/changes",
		"internal/checkpoint",
		"internal/debugenv",
		"internal/disk",
		"internal/errno",
		"internal/gateway",
		"internal/guest/supervisor",
		"internal/guestfs",
		"internal/guestrpc",
		"internal/headtail",
		"internal/hostpath",
		"internal/job",
		"internal/journal",
		"internal/kernel",
		"internal/lograte",
		"internal/machine",
		"internal/mount",
		"internal/private",
		"internal/reach",
		"internal/record",
		"internal/refcount",
		"internal/secret",
		"internal/snapshot",
		"internal/vmnet",
		"internal/volume",
		"nat",
		"wasi",
	},
	"internal/bind": {
		"internal/capnprpc",
		"internal/errno",
	},
	"internal/changes": {
		"internal/guestfs",
		"internal/guestrpc",
		"internal/mount",
	},
	// wires a network
	"internal/gateway": {
		"dhcp",
		"egress",
		"internal/budget",
		"internal/dns",
		"internal/guestrpc",
		"internal/httpserver",
		"internal/reach",
		"internal/secret",
		"internal/vmnet",
		"nat",
		"netstack",
	},
	"internal/serve": {
		"client",
		"egress",
		"images",
		"internal/httpserver",
		"nat",
		"vm",
	},
	"internal/top": {
		"client",
		"egress",
		"internal/hostfile",
		"internal/termtext",
		"vm",
	},
	"internal/ui": {
		"client",
		"internal/httpserver",
		"internal/origin",
		"internal/serve",
		"nat",
		"vm",
	},
	"internal/sandboxd": {
		"client",
		"internal/httpserver",
		"vm",
	},
	"internal/secret": {},
	"scripts/clients": {
		"internal/serve",
	},
	"internal/record": {
		"egress",
	},
	"internal/reach": {
		"egress",
		"internal/capnprpc",
		"internal/errno",
		"internal/guestrpc",
		"internal/hostpath",
		"nat",
	},
	"internal/checkpoint": {
		"internal/disk",
		"internal/machine",
		"internal/refcount",
		"internal/shortage",
		"internal/snapshot",
	},
	"cmd/agentvm": {
		"client",
		"egress",
		"images",
		"internal/atomicfile",
		"internal/build",
		"internal/changes",
		"internal/confine",
		"internal/daemon",
		"internal/debugenv",
		"internal/disk",
		"internal/e2b",
		"internal/guest/supervisor",
		"internal/guestfs",
		"internal/guestrpc",
		"internal/hostfile",
		"internal/hostpath",
		"internal/httpserver",
		"internal/journal",
		"internal/kernel",
		"internal/machine",
		"internal/mcp",
		"internal/mount",
		"internal/pod",
		"internal/preview",
		"internal/private",
		"internal/record",
		"internal/sandboxd",
		"internal/serve",
		"internal/service",
		"internal/snapshot",
		"internal/spec",
		"internal/sshd",
		"internal/tail",
		"internal/termtext",
		"internal/top",
		"internal/ui",
		"internal/vmnet",
		"internal/volume",
		"nat",
		"tools",
		"vm",
		"wasi",
	},
	"internal/sshd": {
		"client",
		"internal/atomicfile",
		"internal/guestfs",
		"internal/guestrpc",
		"internal/private",
		"vm",
	},
	"internal/build": {
		"egress",
		"images",
		"internal/atomicfile",
		"internal/httpretry",
		"internal/private",
		"vm",
	},
	"internal/e2b": {
		"client",
		"egress",
		"internal/httpserver",
		"internal/naming",
		"internal/reach",
		"vm",
	},
	"internal/pod": {
		"client",
		"egress",
		"internal/atomicfile",
		"internal/e2b",
		"internal/httpserver",
	},
	"internal/agenttool": {
		"internal/journal",
		"vm",
	},
	"tools": {
		"client",
		"internal/agenttool",
		"internal/headtail",
		"vm",
	},
	"internal/mcp": {
		"client",
		"egress",
		"internal/agenttool",
		"internal/httpserver",
		"internal/journal",
		"nat",
		"vm",
	},
	"client": {
		"egress",
		"images",
		"internal/atomicfile",
		"internal/capnprpc",
		"internal/confine",
		"internal/daemon",
		"internal/daemonrpc",
		"internal/guestfs",
		"internal/guestrpc",
		"internal/headtail",
		"internal/journal",
		"internal/objectstore",
		"internal/snapshot",
		"internal/statestore",
		"internal/tail",
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
		"internal/capnprpc",
		"internal/daemon",
		"internal/dns",
		"internal/guest/supervisor",
		"internal/guestrpc",
		"internal/kernel",
		"internal/machine",
		"internal/mount",
		"internal/objectstore",
		"internal/preview",
		"internal/snapshot",
		"internal/statestore",
		"internal/vmnet",
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

	"internal/disk": {
		"internal/atomicfile",
		"internal/hostfile",
		"internal/lockfile",
	},
	"internal/dns":              nil,
	"internal/servername":       nil,
	"internal/vmnet":            {"internal/atomicfile", "internal/errno", "internal/lockfile", "internal/naming", "internal/private", "internal/unixsocket"},
	"internal/volume":           {"internal/lockfile", "internal/naming", "internal/private"},
	"egress":                    {"internal/errno", "internal/servername"},
	"internal/machine/riscv":    nil,
	"internal/guest/supervisor": nil,
	"images": {
		"egress",
		"internal/atomicfile",
		"internal/chunked",
		"internal/errno",
		"internal/hostfile",
		"internal/httpretry",
		"internal/lockfile",
		"internal/private",
		"internal/refcount",
		"internal/shortage",
	},
	// for tests
	"images/storetest": {
		"images",
		"internal/leaktest",
	},
	"internal/atomicfile": {"internal/lockfile"},
	"internal/service":    nil,
	"internal/errno":      nil,
	"internal/budget":     nil,
	"internal/chunked":    nil,
	"internal/headtail":   nil,
	"internal/httpretry":  nil,
	"internal/lockfile":   nil,
	"internal/origin":     nil,
	"internal/confine":    nil,
	"internal/debugenv":   nil,
	"internal/httpserver": nil,
	"internal/hostfile":   nil,
	"internal/hostpath": {
		"internal/atomicfile",
		"internal/lockfile",
		"internal/private",
	},
	"internal/naming":     nil,
	"internal/refcount":   nil,
	"internal/sparsefile": nil,
	"internal/unixsocket": nil,
	"internal/wasmbin":    nil,
	"internal/tail":       nil,
	"internal/lograte":    nil,
	"internal/termtext":   nil,
	"internal/private": {
		"internal/atomicfile",
		"internal/hostfile",
	},
	"internal/shortage":  {"internal/errno"},
	"internal/leaktest":  nil, // this and the next three are for tests
	"internal/qemutest":  nil,
	"internal/smalldisk": nil,
	"internal/testclock": nil,
	"internal/watchdog":  nil,
	"internal/job": {
		"internal/atomicfile",
		"internal/capnprpc",
		"internal/errno",
		"internal/guestrpc",
		"internal/journal",
		"internal/private",
		"internal/shortage",
	},
	"internal/journal":        nil,
	"internal/kernel":         nil,
	"internal/mount/fusetest": {"internal/errno"}, // for tests
	"internal/mount": {
		"internal/budget",
		"internal/confine", // for tests
		"internal/errno",
		"internal/hostfile",
		"internal/hostpath",
		"internal/mount/protect",
	},
	"internal/mount/protect": nil,
	"netstack":               {"internal/budget"},
	"internal/preview": {
		"internal/atomicfile",
		"internal/httpserver",
		"internal/origin",
		"internal/private",
	},
	"internal/spec": {"egress", "internal/mount", "nat", "vm"},
	"internal/capnprpc": {
		"internal/budget",
		"internal/errno",
	},
	"internal/capnprpc/rpctest": nil, // for tests
	"internal/guestrpc": {
		"internal/budget",
		"internal/capnprpc",
		"internal/errno",
	},
	"internal/guestfs": {
		"internal/guestrpc",
		"internal/hostfile",
		"internal/hostpath",
		"internal/sparsefile",
	},
	"internal/daemonrpc": {
		"egress",
		"internal/capnprpc",
		"internal/confine",
		"internal/errno",
		"internal/guestrpc",
		"internal/journal",
		"internal/snapshot",
		"vm",
	},
	// the disk beside a snapshot shares its layers with the disks of VMs
	"internal/objectstore": {"internal/atomicfile"},
	"internal/statestore": {
		"internal/naming",
		"internal/objectstore",
		"internal/private",
		"internal/snapshot",
	},
	"internal/snapshot": {
		"internal/atomicfile",
		"internal/disk",
		"internal/hostfile",
		"internal/lockfile",
		"internal/naming",
		"internal/private",
	},
	"wasi": {
		"internal/errno",
		"internal/hostfile",
		"internal/wasmbin",
	},
}

// reserved are packages of others that only some of ours may import: what reaches the network, and what must not show
// outside of the packages that speak it. net/http serves, in gateway, the page that tells a guest what was denied, and
// in daemon the metrics; reach has the client for servers in a VM, of which vm and cmd/agentvm use the types.
var reserved = map[string][]string{
	"net/http":                                     {"client", "cmd/agentvm", "internal/daemon", "images", "integration", "internal/build", "internal/httpretry", "internal/httpserver", "internal/e2b", "internal/gateway", "internal/mcp", "internal/objectstore", "internal/origin", "internal/pod", "internal/preview", "internal/reach", "internal/sandboxd", "internal/secret", "internal/serve", "internal/servername", "internal/ui", "vm"},
	"modernc.org/sqlite":                           {"internal/preview"},
	"github.com/modelcontextprotocol/go-sdk":       {"integration", "internal/mcp"},
	"github.com/prometheus":                        {"internal/daemon"},
	"capnproto.org/go/capnp/v3":                    {"internal/capnprpc", "internal/daemonrpc", "internal/guestrpc"},
	"gvisor.dev/gvisor":                            {"cmd/agentvm", "netstack"}, // the program turns its log off
	"gvisor.dev/gvisor/pkg/tcpip":                  {"netstack"},
	"github.com/miekg/dns":                         {"internal/dns"},
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
var forTests = []string{"images/imagestest", "images/storetest", "internal/guestfs/guestfstest", "internal/capnprpc/rpctest", "internal/leaktest", "internal/mount/fusetest", "internal/qemutest", "internal/smalldisk", "internal/testclock", "netstack/netstacktest"}

// testsMayImport has what the tests of a package may import beyond what the package itself may: the real part at the other end.
var testsMayImport = map[string][]string{
	"dhcp":                    {"netstack"},                                            // a guest's network
	"integration":             {"internal/disk", "internal/gateway", "internal/reach"}, // the network at the socket of an exported module
	"internal/capnprpc":       {"internal/guestrpc"},                                   // its schema has an interface with streams
	"internal/daemon":         {"netstack"},
	"internal/httpserver":     {"client", "internal/e2b", "internal/mcp", "internal/serve", "internal/ui"},                                   // the servers
	"internal/disk":           {"internal/kernel", "internal/machine", "wasi"},                                                               // Linux mounts what was written
	"internal/guest":          {"images", "internal/disk", "internal/guest/supervisor", "internal/kernel", "internal/machine", "vm", "wasi"}, // runs as PID 1 of a machine
	"internal/gateway":        {"wasi"},                                                                                                      // the stream of a machine's network
	"internal/guestfs":        {"internal/guest", "internal/capnprpc"},                                                                       // the real service of files
	"internal/machine":        {"internal/kernel"},
	"internal/machine/native": {"internal/machine/riscv"}, // code to translate
	"internal/unixsocket":     {"internal/private"},       // a folder that no other user enters
	"internal/serve":          {"internal/daemon"},        // its program is the daemons, too
	"netstack":                {"wasi"},                   // the stream of a machine's network
	"vm":                      {"internal/guest"},

	"internal/machine/native/arm64/verify": {"internal/machine/native/arm64", "internal/machine/native/blocks", "internal/machine/riscv"}, // code to change
	"internal/machine/native/verify":       {"internal/machine/native/amd64", "internal/machine/riscv"},                                   // code to change
}

// reservedInTests adds to reserved for tests.
var reservedInTests = map[string][]string{
	"net/http":                               {"internal/statestore"}, // an object store
	"github.com/modelcontextprotocol/go-sdk": {"cmd/agentvm"},         // a client
	"google.golang.org/grpc":                 {"internal/sandboxd"},   // a client
	"github.com/miekg/dns":                   {"integration"},         // a server of names for guests to ask
	"gvisor.dev/gvisor/pkg/tcpip":            {"nat"},                 // a second stack, as the guest's
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
		{"netstack", "OURS/internal/budget", false, true},
		{"netstack", "OURS/wasi", false, false},
		{"netstack", "OURS/wasi", true, true},
		{"netstack", "OURS/vm", true, false},
		{"netstack", "OURS/internal/leaktest", true, true},
		{"netstack", "OURS/internal/leaktest", false, false},
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
