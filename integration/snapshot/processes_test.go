package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"agentvm/vm"
)

// restoreEnv makes the test binary a process that restores the file which it names.
const restoreEnv = "AGENTVM_TEST_RESTORE"

// restoreAndAnswer restores a file and prints the answers of its VM.
func restoreAndAnswer(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
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
			command.Env = append(os.Environ(), restoreEnv+"="+path, "AGENTVM_STORE="+kit.store)
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
