package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/vm"
)

// What makes the test binary another process: one that restores the file which the variable names, or that starts a VM with
// the store which it names.
const (
	restoreEnv = "AGENTVM_TEST_RESTORE"
	startEnv   = "AGENTVM_TEST_START"
)

// restoreAndAnswer restores a file and prints the answers of its VM.
func restoreAndAnswer(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // it may compile the machine below another emulator
	defer cancel()
	v, err := vm.Restore(ctx, path, vm.Config{StoreDir: os.Getenv("AGENTVM_STORE")}, vm.RestoreOptions{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer v.Close()
	all := make(map[string]string)
	for what, line := range withFile {
		r, err := v.Exec(ctx, line)
		if err != nil || r.ExitCode != 0 {
			fmt.Fprintf(os.Stderr, "%q: %+v, %v\n", line, r, err)
			return 1
		}
		all[what] = string(bytes.TrimSpace(r.Stdout))
	}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		return 1
	}
	return 0
}

// withFile is identities, and the file that the saved VM had.
var withFile = func() map[string]string {
	all := map[string]string{"file": "sha256sum </root/file"}
	for what, line := range identities {
		all[what] = line
	}
	return all
}()

func TestManyProcessesRestoreOneFile(t *testing.T) {
	v := start(t, config(t))
	output(t, v, "seq 1 200000 >/root/file")
	sum := output(t, v, "sha256sum </root/file")
	path := saved(t, v)
	v.Close()
	const processes = 20
	all := make([]map[string]string, processes)
	var running sync.WaitGroup
	slots := make(chan struct{}, 8) // that live at a time; each has a machine and a test binary
	for i := range processes {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			command := exec.CommandContext(limited(t), os.Args[0])
			command.Env = append(os.Environ(), restoreEnv+"="+path, "AGENTVM_STORE="+store.Dir())
			var stderr bytes.Buffer
			command.Stderr = &stderr
			text, err := command.Output()
			if err == nil {
				err = json.Unmarshal(text, &all[i])
			}
			if err != nil {
				t.Errorf("process %d: %v: %.2000s", i, err, stderr.Bytes())
			}
		})
	}
	running.Wait()
	if t.Failed() {
		return
	}
	wantDistinct(t, all)
	for i, a := range all {
		if a["file"] != sum {
			t.Errorf("process %d: the file's hash is %s, was %s", i, a["file"], sum)
		}
	}
}

// startAndAnswer starts the first VM of its kind, or one of the first.
func startAndAnswer(store string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	v, err := vm.Start(ctx, vm.Config{StoreDir: store, Image: os.Getenv("AGENTVM_TEST_IMAGE"), Memory: firstMemory})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer v.Close()
	r, err := v.Exec(ctx, "cat /proc/sys/kernel/random/uuid /etc/machine-id")
	if err != nil || r.ExitCode != 0 {
		fmt.Fprintln(os.Stderr, r, err)
		return 1
	}
	fmt.Printf("%s", r.Stdout)
	return 0
}

// firstMemory makes VMs of a kind that no other test has.
const firstMemory = 131 << 20

func bases(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(store.Dir(), "bases", "*.snap"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Processes that start the first VMs of a kind at the same time, some of which are killed, leave one base that works.
func TestFirstStartsOfManyProcesses(t *testing.T) {
	c := config(t)
	before := len(bases(t))
	var running sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[string]int)
	for i := range 6 {
		running.Go(func() {
			ctx := limited(t)
			if i%3 == 2 { // killed in the middle
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(i)*400*time.Millisecond)
				defer cancel()
			}
			command := exec.CommandContext(ctx, os.Args[0])
			command.Env = append(os.Environ(), startEnv+"="+store.Dir(), "AGENTVM_TEST_IMAGE="+c.Image)
			var stderr bytes.Buffer
			command.Stderr = &stderr
			text, err := command.Output()
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("process %d: %v: %.2000s", i, err, stderr.Bytes())
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range strings.Fields(string(text)) {
				if other, taken := seen[id]; taken {
					t.Errorf("processes %d and %d have %s", other, i, id)
				}
				seen[id] = i
			}
		})
	}
	running.Wait()
	c.Memory = firstMemory
	v := start(t, c)
	output(t, v, "true")
	v.Close()
	if n := len(bases(t)); n > before+1 {
		t.Errorf("%d bases for one kind of VM", n-before)
	}
	began := time.Now()
	output(t, start(t, c), "true")
	t.Log("the next start and its first command took", time.Since(began))
	left, err := filepath.Glob(filepath.Join(store.Dir(), "bases", ".*.tmp"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
