package agentvm_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// opensByName are functions of package os that open, make or replace what a path means at that moment, links included.
var opensByName = []string{"Open", "OpenFile", "OpenRoot", "OpenInRoot", "Create", "ReadFile", "WriteFile", "DirFS", "CopyFS"}

// mayOpenByName has the files that may use them, and why a guest has no hand in any of their paths. Whatever a user
// configures or names on a command line goes through internal/host/hostpath.
var mayOpenByName = map[string]string{
	"cmd/agentvm/":                  "",
	"internal/daemon/":              "files of the store's own",
	"internal/storage/disk/":        "disks of the store",
	"internal/network/dns/":         "the system's own list of servers",
	"internal/machine/":             "compiled code and scratch files of the store",
	"images/":                       "files of the store's own",
	"internal/network/vmnet/":       "files of the store's own",
	"internal/host/unixsocket/":     "folders of the store, and one that it makes",
	"internal/host/hostpath/":       "it is the way",
	"internal/host/private/":        "files of the store's own and keys, checked as ssh does",
	"internal/host/atomicfile/":     "the folder of a path that its caller may write",
	"internal/host/hostfile/":       "Touch is for files of the store's own",
	"internal/daemon/confine/":      "the system's own tables",
	"internal/daemon/watchdog/":     "the system's own tables",
	"internal/storage/journal/":     "files of the store's own",
	"internal/network/preview/":     "files of the store's own",
	"internal/storage/snapshot/":    "files of the store's own",
	"internal/storage/translations": "files of the store's own",
	"internal/host/buildid/":        "the program of this process",
	"internal/api/top/":             "logs of the store, and the system's own tables",
	"internal/host/tail/":           "logs of the store; whoever reads another one opens it",
	"internal/storage/objectstore/": "credentials, and a directory that the user has named, below which nothing leads outside (os.Root)",
	"client/state.go":               "a scratch file of the store",
	"vm/":                           "",
	"wasi/command.go":               "agentvm debug run-wasi: no guest of a VM",
	"internal/settings/find.go":     "the project file: what it gives is not trusted (checkProject)",
	"internal/share/mount/":         "",
	"internal/share/mount/events":   "the system's own tables",
	"internal/guest/":               "in the guest",
	"internal/test/smalldisk/":      "images of tests",
	"integration/":                  "measurements",
	"scripts/":                      "builds",
	"internal/machine/kernel/":      "builds",
	"cmd/agentvm-guest/":            "in the guest",
	"cmd/agentvm-gateway/":          "its host has no VM",
	"cmd/agentvm/pod.go":            "the store that comes with the container's image",
	"internal/api/pod/":             "a file of the store's own",
	"vm/resources.go":               "the image's disk, in the store",
	"vm/snapshot.go":                "a scratch file of the store",
	"cmd/agentvm/debug":             "agentvm debug: no guest of a VM",
	"cmd/agentvm/memory":            "the system's own tables",
	"cmd/agentvm/doctor":            "the store's folder",
	"cmd/agentvm/snapshot_":         "what is beside a snapshot, in the store",
}

// TestHostPaths finds code that opens a path by its name, where a guest could have put a link.
func TestHostPaths(t *testing.T) {
	eachSource(t, func(name string, files *token.FileSet, file *ast.File) {
		for _, at := range byName(file) {
			if reasonFor(name) == "" {
				t.Errorf("%s opens a path by its name: use internal/host/hostpath, or say here why no guest has a hand in it", files.Position(at))
			}
		}
	})
}

// reasonFor is that of the longest entry that the file's path begins with.
func reasonFor(name string) (reason string) {
	longest := -1
	for prefix, why := range mayOpenByName {
		if strings.HasPrefix(name, prefix) && len(prefix) > longest {
			longest, reason = len(prefix), why
		}
	}
	if strings.HasSuffix(filepath.Dir(name), "test") {
		return "for tests"
	}
	return reason
}

func byName(file *ast.File) (list []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" && slices.Contains(opensByName, s.Sel.Name) {
				list = append(list, n.Pos())
			}
		}
		return true
	})
	return list
}

func TestByName(t *testing.T) {
	const source = "package p\nimport \"os\"\nfunc f(r *os.Root) { os.Open(\"x\"); r.Open(\"x\"); os.ReadFile(\"y\"); os.Stat(\"z\"); use(os.Create) }"
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil || len(byName(file)) != 3 {
		t.Errorf("%v, %v", byName(file), err)
	}
	for name, want := range map[string]bool{"internal/share/guestfs/in.go": false, "vm/resources.go": true, "cmd/agentvm/cp.go": false, "newpackage/x.go": false, "images/x.go": true} {
		if (reasonFor(name) != "") != want {
			t.Errorf("%s: %q", name, reasonFor(name))
		}
	}
}
