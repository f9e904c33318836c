package agentvm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestUsedFromAnotherModule builds the README's Go example in a module of its own, as docs/guide/library.md says how, and runs it.
func TestUsedFromAnotherModule(t *testing.T) {
	if testing.Short() {
		t.Skip("it boots a machine")
	}
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(read(t, "README.md"))
	if block == nil {
		t.Fatal("README.md shows no Go code")
	}
	dir := t.TempDir()
	program := "package main\n\nimport (\n\t\"context\"\n\t\"fmt\"\n\t\"log\"\n\n\t\"" + module(t) + "/vm\"\n)\n\nfunc main() {\n" + block[1] + "}\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		command := exec.Command(name, args...)
		command.Dir = dir
		command.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off", "AGENTVM_STORE="+filepath.Join(dir, "store"))
		var errors strings.Builder
		command.Stderr = &errors
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", command, err, out, errors.String())
		}
		return string(out)
	}
	// What Config takes can be made by another module, which names no package below internal.
	const settings = `package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"MODULE/egress"
	"MODULE/vm"
)

func main() {
	ctx, dir := context.Background(), os.Args[1]
	mount, err := vm.ParseMount(dir + ":/src:ro")
	if err != nil {
		log.Fatal(err)
	}
	disk := filepath.Join(dir, "disk.img")
	if err := vm.CreateDisk(disk, 64<<20); err != nil {
		log.Fatal(err)
	}
	v, err := vm.Start(ctx, vm.Config{
		Image: "busybox", Mounts: []vm.Mount{mount}, Disk: disk,
		Network: vm.Network{Policy: egress.Policy{Mode: egress.None}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	r, err := v.Exec(ctx, "ls /src/settings; df -m / | awk 'NR == 2 { print $2 < 100 }'")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s%s", r.Stdout, r.Stderr)
}
`
	if err := os.Mkdir(filepath.Join(dir, "settings"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "settings", "main.go"), []byte(strings.ReplaceAll(settings, "MODULE", module(t))), 0o644); err != nil {
		t.Fatal(err)
	}
	run("go", "mod", "init", "example.com/program")
	run("go", "mod", "edit", "-require="+module(t)+"@v0.0.0", "-replace="+module(t)+"="+root)
	// With the sums that this module knows the go command asks neither a proxy nor the checksum database; go mod tidy would, for
	// the tests of other modules.
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), []byte(read(t, "go.sum")), 0o644); err != nil {
		t.Fatal(err)
	}
	run("go", "build", "-mod=mod", "-o", "program.exe", ".")
	if got, want := run(filepath.Join(dir, "program.exe")), "Linux riscv64\n3\n"; got != want {
		t.Errorf("the program printed %q, want %q", got, want)
	}
	run("go", "build", "-o", "settings.exe", "./settings")
	if got, want := run(filepath.Join(dir, "settings.exe"), dir), "main.go\n1\n"; got != want {
		t.Errorf("the program with mounts and a disk printed %q, want %q", got, want)
	}
}
