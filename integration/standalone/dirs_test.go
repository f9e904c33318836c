package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"

	"agentvm/internal/host/platform"
	"agentvm/vm"
)

// hostTree makes a directory for a guest, beside which is a file that no guest may see.
func hostTree(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "dir")
	for name, text := range map[string]string{"hello": "from the host\n", "sub/deep/file": "deep\n", "large": strings.Repeat("0123456789abcde\n", 20_000), "../secret": "secret\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 350 {
		if err := os.WriteFile(filepath.Join(dir, "sub", fmt.Sprintf("%0*d", 150+i%50, i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(dir, "outside")); err != nil {
		t.Skip(err) // Windows without the privilege
	}
	return dir
}

// useOfTree uses a directory as programs do; each line of it prints something.
const useOfTree = `set -e; cd /data
cat hello sub/deep/file; sha256sum <large; ls sub | wc -l; find sub | wc -l
echo one >new; echo two >>new; cat new; wc -c <new
mkdir -p a/b/c; mv new a/b/c/moved; mv a/b x; cat x/c/moved; ls a | wc -l
cp large copy; sha256sum <copy; : >copy; wc -c <copy; mv hello copy; cat copy; test ! -e hello; echo renamed
exec 3<copy; rm copy; cat <&3; exec 3<&-; mkfifo pipe 2>/dev/null || echo no pipe
ln -s x/c/moved link; readlink link; cat link; rm link; cat outside 2>/dev/null || echo no way out
touch -d '2001-02-03 04:05:06' x/c/moved; date -u -r x/c/moved +%Y-%m-%d; chmod 600 x/c/moved; stat -c %a x/c/moved
cp -r sub again; ls again | wc -l; rm -r again; rmdir a; test ! -e again; ls / | grep -c data
dd if=/dev/zero of=sparse bs=1 count=1 seek=300000 2>/dev/null; wc -c <sparse; mv sparse sub; echo $(ls)
`

var treeUsed = strings.Join([]string{
	"from the host", "deep", "LARGE  -", "351", "353", "one", "two", "8", "one", "two", "0", "LARGE  -", "0", "from the host", "renamed", "from the host",
	"no pipe", "x/c/moved", "one", "two", "no way out", "2001-02-03", "777", "351", "1", "300001", "large outside sub x", "",
}, "\n")

// checkTree checks what useOfTree has left.
func checkTree(t *testing.T, dir string) {
	t.Helper()
	for name, want := range map[string]string{"x/c/moved": "one\ntwo\n", "sub/sparse": strings.Repeat("\x00", 300_001), "../secret": "secret\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); string(text) != want {
			t.Errorf("%s on the host: %.100q of %d bytes, %v", name, text, len(text), err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "x/c/moved")); err != nil || !info.ModTime().Equal(time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)) {
		t.Errorf("%v, %v", info, err)
	}
}

// TestExportedDirectories: mounts of RunModule are preopened directories, and those are mounts in the module's guest.
func TestExportedDirectories(t *testing.T) { onBoth(t, exportedDirectories) }

func exportedDirectories(t *testing.T, of platform.Architecture) {
	module := export(t, of, nil)
	path, store, dir := filepath.Join(t.TempDir(), "busybox.wasm"), t.TempDir(), hostTree(t)
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	large := sumOf(bytes.Repeat([]byte("0123456789abcde\n"), 20_000))
	want := strings.ReplaceAll(treeUsed, "LARGE", large)
	for name, network := range map[string]vm.Network{"alone": {Disabled: true}, "with a network": {}} {
		t.Run(name, func(t *testing.T) {
			dir := hostTree(t)
			mounts := []vm.Mount{{HostPath: dir, GuestPath: "/data", Unprotected: []string{"."}}, {HostPath: hostTree(t), GuestPath: "/made/for/it", ReadOnly: true}}
			c := vm.Config{Image: path, StoreDir: store, Network: network, Mounts: mounts}
			r, err := vm.RunModule(t.Context(), c, vm.Command{Line: useOfTree + "cat /made/for/it/hello; echo x 2>&1 >/made/for/it/hello || exit 9"})
			if err != nil {
				t.Fatal(err)
			}
			const after = "from the host\n/bin/sh: can't create /made/for/it/hello: Read-only file system\n"
			if string(r.Stdout) != want+after || r.ExitCode != 9 && r.ExitCode != 1 {
				t.Errorf("%.3000q, code %d, want %q", r.Stdout, r.ExitCode, want+after)
			}
			checkTree(t, dir)
		})
	}
	t.Run("another runtime", func(t *testing.T) {
		f := newForeign(t, module)
		f.dirs = wazero.NewFSConfig().WithDirMount(dir, "data").WithReadOnlyDirMount(hostTree(t), "/ro").WithDirMount(t.TempDir(), "/")
		out, errs, code := f.run(t, strings.NewReader(""), [2]string{}, "sh", "-c", useOfTree+"cat /ro/hello; cp /bin/busybox /data/busybox; /data/busybox echo runs; rm /data/busybox; echo x >/ro/hello")
		if after := "from the host\nruns\n"; out != want+after || code != 1 || !strings.Contains(errs, "/ro/hello") {
			t.Errorf("%.3000q, %q, code %d, want %q", out, errs, code, want+after)
		}
		checkTree(t, dir)
	})
}

// TestExportedDirectoriesInNode: positions in a directory that changes mean less there. Nor does Node.js have listening sockets for a module.
func TestExportedDirectoriesInNode(t *testing.T) { onBoth(t, exportedDirectoriesInNode) }

func exportedDirectoriesInNode(t *testing.T, of platform.Architecture) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip(err)
	}
	path, dir := filepath.Join(t.TempDir(), "busybox.wasm"), hostTree(t)
	if err := os.WriteFile(path, export(t, of, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	const program = `
		const { WASI } = require('node:wasi'), [file, dir, script] = process.argv.slice(1)
		const wasi = new WASI({ version: 'preview1', args: ['m', 'sh', '-c', script], preopens: { '/data': dir }, returnOnExit: true })
		WebAssembly.instantiate(require('node:fs').readFileSync(file), wasi.getImportObject()).then(m => process.exit(wasi.start(m.instance)))`
	command := exec.CommandContext(t.Context(), "node", "--no-warnings", "-e", program, path, dir, useOfTree+"exit 4")
	out, err := command.Output()
	want := strings.ReplaceAll(treeUsed, "LARGE", sumOf(bytes.Repeat([]byte("0123456789abcde\n"), 20_000)))
	if exit := (*exec.ExitError)(nil); string(out) != want || !errors.As(err, &exit) || exit.ExitCode() != 4 {
		t.Errorf("%.3000q, %v, want %q", out, err, want)
	}
	checkTree(t, dir)
}
