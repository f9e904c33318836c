package script

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"agentvm/internal/daemon"
	"agentvm/internal/storage/snapshot"
)

// ownStore gives the script a store whose VMs are its own, with the images and the compiled module of all scripts: ownstore. With the
// argument images those are its own, too, and there are none yet: for scripts that remove, or count; and likewise, after it, with compiled. At
// the script's end its VMs are removed.
func ownStore(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs("store")
	ts.Check(os.Mkdir(dir, 0o700))
	parts := []string{"blobs", "compiled", "disks", "images", "layers", "locks"}
	if len(args) > 0 && args[0] == "images" {
		parts = []string{"compiled"}
	}
	if slices.Contains(args, "compiled") {
		parts = nil
	}
	for _, part := range parts {
		from := filepath.Join(ts.Getenv("AGENTVM_STORE"), part)
		ts.Check(os.MkdirAll(from, 0o700))
		ts.Check(os.Symlink(from, filepath.Join(dir, part)))
	}
	ts.Setenv("AGENTVM_STORE", dir)
	program, err := exec.LookPath("agentvm")
	ts.Check(err)
	vms := daemon.Store{Dir: filepath.Join(dir, "vms"), Command: []string{program, "daemon", "run", "--dir", filepath.Join(dir, "vms")}}
	ts.Defer(func() { removeAll(ts, vms) })
}

func removeAll(ts *testscript.TestScript, store daemon.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := store.List(ctx)
	ts.Check(err)
	for _, v := range list {
		if client, err := store.Connect(ctx, v.Name); err == nil {
			ts.Check(client.Stop(ctx, 0))
			ts.Check(client.Close())
		}
		if log, err := os.ReadFile(filepath.Join(store.Dir, v.Name, "daemon.log")); err == nil {
			ts.Logf("daemon.log of %s:\n%s", v.Name, log)
		}
		ts.Check(store.Remove(ctx, v.Name))
	}
}

// capture puts what the last command has printed into a variable: capture VARIABLE.
func capture(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// killDaemon ends a VM's daemon as nothing else does: killdaemon NAME.
func killDaemon(ts *testscript.TestScript, _ bool, args []string) {
	store := daemon.Store{Dir: filepath.Join(ts.Getenv("AGENTVM_STORE"), "vms")}
	status, err := store.Status(context.Background(), args[0])
	ts.Check(err)
	if status.Info == nil {
		ts.Fatalf("%s does not answer: %s %s", args[0], status.State, status.Error)
	}
	process, err := os.FindProcess(status.Info.Pid)
	ts.Check(err)
	ts.Check(process.Kill())
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if now, err := store.Status(context.Background(), args[0]); err == nil && now.Info == nil && now.State == daemon.Crashed {
			return
		}
	}
	ts.Fatalf("the daemon lives on")
}

// until repeats a command until its output matches: until REGEXP COMMAND [ARGS...].
func until(ts *testscript.TestScript, _ bool, args []string) {
	want, err := regexp.Compile(args[0])
	ts.Check(err)
	var out []byte
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if out, err = command(ts, args[1:]).Output(); want.Match(out) {
			return
		}
	}
	ts.Fatalf("%s: %q, %v", args[1], out, err)
}

// foreignSnapshot writes the snapshot of a VM of another version's machine, or makes one of a snapshot that is there: foreign PATTERN.
func foreignSnapshot(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	content := snapshot.Content{Meta: snapshot.Meta{LinearMemory: 1 << 20, Memory: 128 << 20, Image: "busybox"}}
	if found, _ := filepath.Glob(path); len(found) == 1 {
		path = found[0]
		file, err := snapshot.Open(path)
		ts.Check(err)
		defer file.Close()
		content.Meta = file.Meta()
		for _, r := range file.Memory() {
			content.Memory = append(content.Memory, snapshot.Extent{At: r.At, Length: r.Length, Source: r.File, Offset: r.Offset})
		}
		saved, err := file.OpenDisk()
		ts.Check(err)
		if saved != nil {
			defer saved.Close()
			content.Disk, content.DiskSize = saved, saved.Size()
		}
	}
	content.Meta.Machine = strings.Repeat("0123456789abcdef", 4)
	ts.Check(snapshot.Write(context.Background(), path, content))
}

// together runs a command several times at once and wants this of each: together COUNT OUTPUT COMMAND [ARGS...]. A "%"
// stands for the number of the run.
func together(ts *testscript.TestScript, _ bool, args []string) {
	count, err := strconv.Atoi(args[0])
	ts.Check(err)
	failures := make([]string, count)
	var running sync.WaitGroup
	for i := range count {
		running.Go(func() {
			numbered := make([]string, 0, len(args))
			for _, arg := range args[1:] {
				numbered = append(numbered, strings.ReplaceAll(arg, "%", strconv.Itoa(i)))
			}
			c := command(ts, numbered[1:])
			var complaints strings.Builder
			c.Stderr = &complaints
			if out, err := c.Output(); err != nil || strings.TrimSuffix(string(out), "\n") != numbered[0] {
				failures[i] = fmt.Sprintf("run %d: %q, %v, %s", i, out, err, &complaints)
			}
		})
	}
	running.Wait()
	for _, failure := range failures {
		if failure != "" {
			ts.Fatalf("%s", failure)
		}
	}
}

// command is one of the script's, with its environment and directory.
func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	program, err := exec.LookPath(args[0])
	ts.Check(err)
	c := exec.Command(program, args[1:]...)
	c.Dir = ts.MkAbs(".")
	c.Env = append(os.Environ(), "AGENTVM_STORE="+ts.Getenv("AGENTVM_STORE"), "AGENTVM_DEBUG=")
	return c
}
