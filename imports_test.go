package agentvm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// part is a folder of this module, or a district of internal/, with all packages below it.
type part struct {
	path string
	uses string // the parts that it may import, all of lower storeys
}

// storeys are the parts from the top down. What stands in one storey does not know what stands beside it. docs/internals/README.md shows the
// same picture, which `AGENTVM_TEST_WRITE=1 go test -run TestPicture .` draws.
var storeys = [][]part{
	{
		{"cmd/agentvm", "client egress images internal/api internal/daemon internal/guest internal/host internal/httpserver internal/imagebuild internal/machine internal/network internal/settings internal/share internal/storage internal/work nat tools vm wasi"},
		{"integration", "client egress images internal/daemon internal/guest internal/host internal/machine internal/network internal/storage nat vm wasi"},
		{"scripts", "images internal/api"},
	},
	{{"tools", "client internal/api internal/work vm"}},
	{{"internal/api", "client egress images internal/guest internal/host internal/httpserver internal/network internal/settings internal/share internal/storage nat vm"}},
	{{"client", "egress images internal/daemon internal/guest internal/host internal/share internal/storage internal/work nat vm"}},
	{{"internal/daemon", "egress images internal/guest internal/host internal/httpserver internal/network internal/settings internal/share internal/storage internal/work nat vm"}},
	{
		{"internal/settings", "egress internal/host internal/share internal/storage nat vm"},
		{"internal/imagebuild", "egress images internal/host vm"},
	},
	{{"vm", "egress images internal/guest internal/host internal/machine internal/network internal/share internal/storage internal/work nat wasi"}},
	{
		{"images", "egress internal/host internal/storage"},
		{"internal/work", "egress internal/guest internal/host internal/storage"},
	},
	{
		{"internal/network", "dhcp egress internal/guest internal/host internal/httpserver nat netstack"},
		{"internal/storage", "internal/host internal/machine"},
	},
	{
		{"internal/machine", "internal/host wasi"},
		{"internal/share", "internal/guest internal/host"},
		{"nat", "internal/host netstack"},
		{"egress", "internal/host"},
		{"cmd/agentvm-guest", "internal/guest"},
	},
	{
		{"wasi", "internal/host"},
		{"netstack", "internal/host"},
		{"dhcp", ""},
		{"internal/guest", "internal/host"},
		{"internal/httpserver", "internal/host"},
	},
	{{"internal/host", ""}},
}

// within has, for packages of a part that know others of it, which ones: theirs and those below them. A package below another is its affair.
var within = map[string]string{
	"internal/api/e2b":               "internal/api/kinds internal/api/live internal/api/rpc",
	"internal/api/rpc":               "internal/api/kinds",
	"internal/api/sandboxd":          "internal/api/kinds internal/api/live internal/api/rpc",
	"internal/api/serve":             "internal/api/kinds",
	"internal/api/sshd":              "internal/api/kinds",
	"internal/api/kinds":             "internal/api/live",
	"internal/api/mcp":               "internal/api/agenttool",
	"internal/api/pod":               "internal/api/e2b",
	"internal/api/ui":                "internal/api/serve",
	"internal/daemon":                "internal/daemon/confine internal/daemon/daemonrpc internal/daemon/watchdog",
	"internal/daemon/daemonrpc":      "internal/daemon/confine",
	"internal/guest":                 "internal/guest/capnprpc internal/guest/files internal/guest/guestrpc internal/guest/netlink internal/guest/sockets",
	"internal/guest/files":           "internal/guest/capnprpc internal/guest/guestrpc",
	"internal/guest/sockets":         "internal/guest/guestrpc internal/guest/netlink",
	"internal/guest/guestrpc":        "internal/guest/capnprpc",
	"internal/host/atomicfile":       "internal/host/lockfile",
	"internal/host/hostpath":         "internal/host/atomicfile internal/host/lockfile internal/host/private",
	"internal/host/private":          "internal/host/atomicfile internal/host/hostfile",
	"internal/host/shortage":         "internal/host/errno",
	"internal/machine":               "internal/machine/native internal/machine/riscv internal/machine/wasmbin",
	"internal/machine/native":        "internal/machine/native/verify internal/machine/a64 internal/machine/riscv",
	"internal/machine/native/verify": "", // shares nothing with what it verifies
	"internal/network/router":        "internal/network/dns internal/network/reach internal/network/secret internal/network/vmnet",
	"internal/share/changes":         "internal/share/guestfs internal/share/mount",
	"internal/storage/checkpoint":    "internal/storage/disk internal/storage/snapshot",
	"internal/storage/snapshot":      "internal/storage/disk",
	"internal/storage/statestore":    "internal/storage/objectstore internal/storage/snapshot",
}

// exceptions are imports against the storeys, with the reason.
var exceptions = map[string]string{
	"wasi internal/machine/wasmbin": "modules are rewritten before they run; the format is a leaf that the computer uses, too",
}

// reserved are packages of others that only some of ours may import: what reaches the network, and what must not show
// outside of the packages that speak it. net/http serves, in gateway, the page that tells a guest what was denied, and
// in daemon the metrics; reach has the client for servers in a VM, of which vm and cmd/agentvm use the types.
var reserved = map[string]string{
	"net/http":                               "client cmd/agentvm internal/daemon images integration internal/imagebuild internal/host/httpretry internal/httpserver internal/api/e2b internal/api/kinds internal/network/router internal/api/mcp internal/storage/objectstore internal/host/origin internal/api/pod internal/network/preview internal/network/reach internal/api/rpc internal/api/sandboxd internal/network/secret internal/api/serve egress/internal/servername internal/api/ui vm",
	"connectrpc.com/connect":                 "internal/api/e2b internal/api/rpc internal/api/sandboxd",
	"github.com/ncruces/go-sqlite3":          "internal/network/preview",
	"github.com/modelcontextprotocol/go-sdk": "integration internal/api/mcp",
	"capnproto.org/go/capnp/v3":              "internal/guest/capnprpc internal/daemon/daemonrpc internal/guest/guestrpc",
	"gvisor.dev/gvisor":                      "cmd/agentvm netstack", // the program turns its log off
	"gvisor.dev/gvisor/pkg/tcpip":            "netstack",
	"github.com/miekg/dns":                   "internal/network/dns",
	"github.com/gopacket/gopacket":           "dhcp integration netstack",
	"golang.org/x/net/icmp":                  "egress",

	"google.golang.org/grpc": "", // it links html/template, too
	// These find methods by their names, so the linker leaves out no method of anything: agentvm was a fifth larger with them.
	"html/template": "",
	"text/template": "",
}

// forTests are packages that every test may import, and that import nothing but what they help to test.
var forTests = []string{
	"images/imagestest", "images/storetest", "internal/guest/capnprpc/rpctest", "internal/share/guestfs/guestfstest", "internal/httpserver/servertest", "internal/share/mount/fusetest", "internal/test",
	"netstack/netstacktest",
}

// testsMayImport has what the tests of a package, and of those below it, may import beyond what these themselves may: the real part at the other end.
var testsMayImport = map[string]string{
	"dhcp":                                 "netstack",                                                                        // a guest's network
	"internal/api/serve":                   "internal/daemon",                                                                 // its program is the daemons, too
	"internal/daemon":                      "netstack",                                                                        // a guest's network
	"internal/guest":                       "images internal/storage/disk internal/guest/supervisor internal/machine vm wasi", // runs as PID 1 of a machine
	"internal/guest/capnprpc":              "internal/guest/guestrpc",                                                         // its schema has an interface with streams
	"internal/host/unixsocket":             "internal/host/private",                                                           // a folder that no other user enters
	"internal/httpserver":                  "client internal/api",                                                             // the servers
	"internal/machine":                     "internal/machine/a64 internal/machine/initramfs internal/machine/kernel",
	"internal/machine/native/arm64/verify": "internal/machine/native internal/machine/a64 internal/machine/riscv", // code to change
	"internal/machine/native/verify":       "internal/machine/native internal/machine/a64 internal/machine/riscv", // code to change
	"internal/network/router":              "wasi",                                                                // the stream of a machine's network
	"internal/share/guestfs":               "internal/guest",                                                      // the real service of files
	"internal/share/mount":                 "internal/daemon/confine",                                             // what a confined daemon may still do
	"internal/storage/disk":                "wasi",                                                                // Linux mounts what was written
	"netstack":                             "wasi",                                                                // the stream of a machine's network
}

// reservedInTests adds to reserved for tests.
var reservedInTests = map[string]string{
	"net/http":                               "internal/storage/statestore", // an object store
	"github.com/modelcontextprotocol/go-sdk": "cmd/agentvm",                 // a client
	"google.golang.org/grpc":                 "internal/api/sandboxd",       // a client
	"github.com/miekg/dns":                   "integration",                 // a server of names for guests to ask
	"gvisor.dev/gvisor/pkg/tcpip":            "nat",                         // a second stack, as the guest's
}

type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string // its own, of its tests inside and outside of the package
}

func TestImports(t *testing.T) {
	used := map[string]bool{} // what of the tables is needed
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module(t)+"/")
		if _, known := partOf(name); !known {
			if name != module(t) && !isBelow(name, "internal/test") && !strings.HasPrefix(name, "scratch/") { // throw-away programs that are not part of the tree
				t.Errorf("%s is in no storey: say what it may import", name)
			}
			continue
		}
		for _, path := range p.Imports {
			if problem := checkImport(t, name, path, false, used); problem != "" {
				t.Errorf("%s imports %s", name, problem)
			}
		}
		for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
			if problem := checkImport(t, name, path, true, used); problem != "" {
				t.Errorf("a test of %s imports %s", name, problem)
			}
		}
	}
	for rule := range rules() {
		if !used[rule] {
			t.Errorf("nothing needs the rule %q any more", rule)
		}
	}
}

// rules are those that allow one import each, as "from to".
func rules() map[string]bool {
	all := map[string]bool{}
	for path := range exceptions {
		all[path] = true
	}
	for from, list := range within {
		for to := range strings.FieldsSeq(list) {
			all[from+" "+to] = true
		}
	}
	for _, p := range slices.Concat(storeys...) {
		for to := range strings.FieldsSeq(p.uses) {
			all[p.path+" "+to] = true
		}
	}
	return all
}

// TestStoreys shows that no part uses one of its own storey or of a higher one.
func TestStoreys(t *testing.T) {
	above := map[string]bool{}
	for _, storey := range storeys {
		for _, p := range storey {
			above[p.path] = true
		}
		for _, p := range storey {
			for use := range strings.FieldsSeq(p.uses) {
				if _, known := partOf(use); !known || above[use] {
					t.Errorf("%s uses %s, which is no part of a lower storey", p.path, use)
				}
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

func isBelowOne(name, folders string) bool {
	return slices.ContainsFunc(strings.Fields(folders), func(folder string) bool { return isBelow(name, folder) })
}

func isBelow(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

func partOf(name string) (of part, known bool) {
	for _, p := range slices.Concat(storeys...) {
		if isBelow(name, p.path) {
			return p, true
		}
	}
	return part{}, false
}

// roomOf is the folder of a part whose packages may all know each other: the longest of within, of the districts' folders, and the part itself.
func roomOf(name string) string {
	p, _ := partOf(name)
	room := p.path
	if rest := strings.TrimPrefix(name, p.path+"/"); strings.HasPrefix(p.path, "internal/") && rest != name {
		first, _, _ := strings.Cut(rest, "/")
		room += "/" + first
	}
	for folder := range within {
		if isBelow(name, folder) && len(folder) > len(room) {
			room = folder
		}
	}
	return room
}

// checkImport says what is wrong with a package, or a test of it, importing path. It notes in used which rule allows it.
func checkImport(t *testing.T, name, path string, test bool, used map[string]bool) (problem string) {
	if imported, ours := strings.CutPrefix(path, module(t)+"/"); ours && !mayImport(name, imported, test, used) {
		return imported + ", which docs/internals/README.md does not allow"
	}
	for prefix, users := range reserved {
		for other, extra := range reservedInTests {
			if test && isBelow(path, other) {
				users += " " + extra
			}
		}
		if isBelow(path, prefix) && !isBelowOne(name, users) {
			return path + ", which is reserved for " + users
		}
	}
	return ""
}

func mayImport(name, imported string, test bool, used map[string]bool) bool {
	kits := strings.Join(forTests, " ")
	if test || isBelowOne(name, kits) {
		if isBelowOne(imported, kits) {
			return true
		}
		for folder, list := range testsMayImport {
			if isBelow(name, folder) && isBelowOne(imported, list) {
				return true
			}
		}
	}
	from, _ := partOf(name)
	to, _ := partOf(imported)
	if from.path != to.path {
		use, exception := from.path+" "+to.path, from.path+" "+imported
		if slices.Contains(strings.Fields(from.uses), to.path) {
			used[use] = true
			return true
		}
		_, allowed := exceptions[exception]
		used[exception] = true
		return allowed
	}
	a, b := roomOf(name), roomOf(imported)
	if a == b {
		return true
	}
	for room := range strings.FieldsSeq(within[a]) {
		if isBelow(b, room) {
			used[a+" "+room] = true
			return true
		}
	}
	return false
}

func TestCheckImport(t *testing.T) {
	for _, test := range []struct {
		name, path string
		test, ok   bool
	}{
		{"netstack", "OURS/internal/host/budget", false, true},
		{"netstack", "OURS/wasi", false, false},
		{"netstack", "OURS/wasi", true, true},
		{"netstack", "OURS/internal/test/leaktest", true, true},
		{"netstack", "OURS/internal/test/leaktest", false, false},
		{"wasi", "OURS/internal/machine/wasmbin", false, true},
		{"wasi", "OURS/internal/machine", false, false},
		{"internal/api/e2b", "OURS/internal/api/serve", false, false},
		{"internal/machine/native/verify", "OURS/internal/machine/native/amd64", false, false},
		{"internal/machine/native/verify", "OURS/internal/machine/native/amd64", true, true},
		{"netstack", "gvisor.dev/gvisor/pkg/tcpip/stack", false, true},
		{"nat", "gvisor.dev/gvisor/pkg/tcpip/stack", false, false},
		{"nat", "gvisor.dev/gvisor/pkg/tcpip/stack", true, true},
	} {
		if problem := checkImport(t, test.name, strings.Replace(test.path, "OURS", module(t), 1), test.test, map[string]bool{}); (problem == "") != test.ok {
			t.Errorf("%s imports %s, in a test %t: %q", test.name, test.path, test.test, problem)
		}
	}
}

// TestPicture compares the picture of docs/internals/README.md with the storeys.
func TestPicture(t *testing.T) {
	const file = "docs/internals/README.md"
	before, rest, _ := strings.Cut(read(t, file), "<!-- storeys -->\n")
	_, after, found := strings.Cut(rest, "<!-- end -->\n")
	if !found {
		t.Fatalf("%s has no place for the picture", file)
	}
	want := before + "<!-- storeys -->\n```\n" + picture() + "```\n<!-- end -->\n" + after
	if os.Getenv("AGENTVM_TEST_WRITE") != "" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != read(t, file) {
		t.Errorf("the picture in %s is not that of imports_test.go: AGENTVM_TEST_WRITE=1 go test -run TestPicture .", file)
	}
}

// picture draws a line for each part, with what it uses, and a rule between storeys.
func picture() string {
	var text strings.Builder
	for i, storey := range storeys {
		if i > 0 {
			text.WriteString("────\n")
		}
		for _, p := range storey {
			uses := strings.ReplaceAll(strings.ReplaceAll(p.uses, "internal/", ""), " ", ", ")
			fmt.Fprintf(&text, "%s\n", strings.TrimRight(fmt.Sprintf("%-18s ► %s", strings.TrimPrefix(p.path, "internal/"), uses), " ►"))
		}
	}
	return text.String()
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
	return list
}
