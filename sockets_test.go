package agentvm_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What code does with the host's network.
const (
	dials   = "dials"
	listens = "listens"
	looksUp = "looks names up"
)

// opens has, for each package that can open a socket of the host, the names in it that do and what they do.
var opens = map[string]map[string]string{
	"net": {
		"Dial": dials, "DialIP": dials, "DialTCP": dials, "DialTimeout": dials, "DialUDP": dials, "DialUnix": dials, "Dialer": dials,
		"FileConn": dials, "FileListener": listens, "FilePacketConn": listens,
		"Listen": listens, "ListenConfig": listens, "ListenIP": listens, "ListenMulticastUDP": listens, "ListenPacket": listens,
		"ListenTCP": listens, "ListenUDP": listens, "ListenUnix": listens, "ListenUnixgram": listens,
		"DefaultResolver": looksUp, "LookupAddr": looksUp, "LookupCNAME": looksUp, "LookupHost": looksUp, "LookupIP": looksUp,
		"LookupMX": looksUp, "LookupNS": looksUp, "LookupSRV": looksUp, "LookupTXT": looksUp, "Resolver": looksUp,
		"ResolveIPAddr": looksUp, "ResolveTCPAddr": looksUp, "ResolveUDPAddr": looksUp,
	},
	"net/http": {
		"Client": dials, "DefaultClient": dials, "DefaultTransport": dials, "Get": dials, "Head": dials, "Post": dials,
		"PostForm": dials, "Transport": dials, "ListenAndServe": listens, "ListenAndServeTLS": listens,
	},
	"net/http/httptest":     {"NewServer": listens, "NewTLSServer": listens, "NewUnstartedServer": listens},
	"crypto/tls":            {"Dial": dials, "DialWithDialer": dials, "Dialer": dials, "Listen": listens},
	"syscall":               {"Socket": dials},
	"golang.org/x/sys/unix": {"Socket": dials},
	"golang.org/x/net/icmp": {"ListenPacket": listens},
	"github.com/miekg/dns": {
		"Dial": dials, "DialTimeout": dials, "DialWithTLS": dials, "Exchange": dials, "ExchangeContext": dials,
		"ListenAndServe": listens, "ListenAndServeTLS": listens, "Server": listens,
	},
}

// mayOpen says which packages and files may do so; a folder with a slash at its end is one with those below it. Only egress reaches out for a guest, and only nat's port forwards listen for one.
// The others are no way for a guest: images downloads what the user has named, objectstore speaks to the object store that the user has named, httpserver listens for clients of serve, e2b, mcp and sandboxd, guest runs inside of the machine, daemon
// and its clients talk over a Unix socket or 127.0.0.1, vmnet has the sockets of the processes of VMs that are in a network together, agentvm looks a name up, and asks for the newest release, when its user wants it. preview, and the client of reach for servers in a
// VM, and the proxy for secrets, have an http.Transport whose only way is the function that it was given, and build's fetches one whose only way is a gate; agentvm-gateway dials the pods of its cluster.
var mayOpen = map[string][]string{
	dials:   {"internal/daemon", "egress", "internal/guest", "internal/guest/netlink", "images", "integration/", "internal/imagebuild/fetch.go", "internal/httpserver/servertest", "cmd/agentvm-gateway/fleet", "internal/network/preview", "internal/network/reach/fetch.go", "internal/network/secret", "internal/storage/objectstore", "internal/host/unixsocket", "vm/fetch.go", "client/vm.go", "cmd/agentvm/version_check.go"},
	listens: {"internal/guest/capnprpc/rpctest", "internal/daemon", "egress", "internal/guest", "images", "images/imagestest", "integration/", "internal/httpserver", "internal/host/unixsocket", "nat"}, // rpctest, servertest: for tests; egress: sockets that send echo requests
	looksUp: {"cmd/agentvm", "integration/"},
}

// TestSockets finds code that opens a socket where the design has none.
func TestSockets(t *testing.T) {
	eachSource(t, func(name string, files *token.FileSet, file *ast.File) {
		for _, use := range openings(file) {
			may := mayOpen[use.does]
			if !slices.ContainsFunc(may, func(m string) bool {
				return m == name || m == path.Dir(name) || strings.HasSuffix(m, "/") && strings.HasPrefix(name, m)
			}) {
				t.Errorf("%s: %s.%s %s, which is for %s", files.Position(use.at), use.from, use.name, use.does, strings.Join(mayOpen[use.does], ", "))
			}
		}
	})
}

// opening is a place in a source file that opens a socket.
type opening struct {
	at               token.Pos
	from, name, does string
}

// openings finds them by the file's imports; a dot import of such a package counts as an opening itself.
func openings(file *ast.File) (list []opening) {
	from := make(map[string]string) // local name to import path
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		if opens[imported] == nil {
			continue
		}
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "." {
			list = append(list, opening{spec.Pos(), imported, ".", dials})
		}
		from[name] = imported
	}
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := selector.X.(*ast.Ident); ok {
			imported := from[x.Name]
			if does := opens[imported][selector.Sel.Name]; does != "" {
				list = append(list, opening{n.Pos(), imported, selector.Sel.Name, does})
			}
		}
		return true
	})
	return list
}

func TestOpenings(t *testing.T) {
	const source = `package p
import (
	"net"
	web "net/http"
	. "crypto/tls"
	other "example.com/net"
)
var d net.Dialer
func f() {
	l, _ := net.Listen("tcp", "")
	c, _ := l.Accept()
	_ = web.Get
	_ = web.StatusOK
	_ = other.Dial
	_, _ = net.Pipe()
	net.DefaultResolver.LookupHost(nil, "")
	c.Dial()
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range openings(file) {
		got = append(got, o.from+"."+o.name+" "+o.does)
	}
	want := []string{
		"crypto/tls.. dials", "net.Dialer dials", "net.Listen listens", "net/http.Get dials", "net.DefaultResolver looks names up",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("openings (-want +got):\n%s", diff)
	}
}
