package agentvm_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "agentvm"

// mayImport has, for each package of this module, what it may import of the others. docs/design.md draws the same
// picture. A package that is not named here may import nothing of ours; packages below one that is named are its own
// affair and follow its rules.
var mayImport = map[string][]string{
	"emulator":          {"emulator/riscv", "internal/debugword", "jit", "wasi"},
	"jit":               {"emulator/riscv"},
	"guest":             {"rpc"},
	"nat":               {"netstack"},
	"daemon":            {"disk", "egress", "images", "internal/fewconns", "internal/naming", "journal", "mount", "nat", "preview", "rpc", "snapshot", "vm"},
	"vm":                {"dhcp", "disk", "dns", "egress", "emulator", "guest/supervisor", "images", "internal/debugword", "internal/fewconns", "journal", "kernel", "mount", "nat", "netstack", "rpc", "snapshot", "wasi"},
	"cmd/agentvm":       {"daemon", "disk", "egress", "emulator", "guest/supervisor", "images", "internal/debugword", "journal", "kernel", "mount", "nat", "preview", "project", "rpc", "snapshot", "vm", "wasi"},
	"cmd/agentvm-guest": {"guest"},
	"integration":       {"dhcp", "dns", "egress", "emulator", "guest/supervisor", "images", "kernel", "mount", "nat", "netstack", "preview", "rpc", "snapshot", "vm", "wasi"},
	"scripts":           {"emulator", "emulator/riscv"},

	// Leaves.
	"dhcp":               nil,
	"disk":               nil,
	"dns":                nil,
	"egress":             nil,
	"emulator/riscv":     nil,
	"guest/supervisor":   nil,
	"images":             nil,
	"images/storetest":   {"images", "internal/leaktest"}, // for tests
	"internal/debugword": nil,
	"internal/fewconns":  nil,
	"internal/naming":    nil,
	"internal/leaktest":  nil, // this and the next three are for tests
	"internal/qemutest":  nil,
	"internal/smalldisk": nil,
	"internal/testclock": nil,
	"journal":            nil,
	"kernel":             nil,
	"mount":              nil,
	"netstack":           nil,
	"preview":            nil,
	"project":            nil,
	"rpc":                nil,
	"snapshot":           {"internal/naming"},
	"wasi":               nil,
}

// reserved are packages of others that only some of ours may import: what reaches the network, and what must not show
// outside of the packages that speak it. net/http serves, in vm, the page that tells a guest what was denied, and
// in daemon the metrics; cmd/agentvm has requests of agentvm fetch.
var reserved = map[string][]string{
	"net/http":                                     {"cmd/agentvm", "daemon", "images", "integration", "internal/fewconns", "preview", "vm"},
	"modernc.org/sqlite":                           {"preview"},
	"github.com/prometheus":                        {"daemon"},
	"capnproto.org/go/capnp/v3":                    {"rpc"},
	"gvisor.dev/gvisor":                            {"netstack"},
	"github.com/miekg/dns":                         {"dns"},
	"github.com/insomniacslk/dhcp":                 {"dhcp", "guest"},
	"github.com/insomniacslk/dhcp/dhcpv4/server4":  {}, // opens sockets of its own
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4": {"guest"},
	"github.com/gopacket/gopacket":                 {"integration", "netstack"},
	"golang.org/x/net/icmp":                        {"egress"},

	// These find methods by their names, so the linker leaves out no method of anything: agentvm was a fifth larger with them.
	"html/template": {},
	"text/template": {},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func TestImports(t *testing.T) {
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		owner := ownerOf(name)
		if _, known := mayImport[owner]; !known {
			continue // throw-away programs that are not part of the tree
		}
		for _, path := range p.Imports {
			checkImport(t, name, owner, path)
		}
	}
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

func checkImport(t *testing.T, name, owner, path string) {
	if imported, ours := strings.CutPrefix(path, module+"/"); ours {
		of := ownerOf(imported)
		if of != owner && !slices.Contains(mayImport[owner], of) {
			t.Errorf("%s imports %s, which docs/design.md does not allow", name, imported)
		}
	}
	for prefix, users := range reserved {
		if (path == prefix || strings.HasPrefix(path, prefix+"/")) && !slices.Contains(users, owner) {
			t.Errorf("%s imports %s, which is reserved for %s", name, path, strings.Join(users, ", "))
		}
	}
}

// TestEveryPackageHasRules finds a new package that nobody has thought about.
func TestEveryPackageHasRules(t *testing.T) {
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if _, known := mayImport[ownerOf(name)]; !known && name != module && !strings.HasPrefix(name, "scratch/") {
			t.Errorf("%s is not in mayImport: say what it may import", name)
		}
	}
}

// listPackages lists the module as built for Linux, where all of it is.
func listPackages(t *testing.T) (list []goPackage) {
	t.Helper()
	command := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
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
