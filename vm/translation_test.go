package vm_test

import (
	"path/filepath"
	"testing"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/vm"
)

// busy is enough for hot code to be translated, and says what it has computed.
const (
	busy     = "i=0; while [ $i -lt 1500 ]; do i=$((i+1)); done; echo $i; seq 1 20000 | sha256sum"
	busyDone = "1500\nf6351f5ead9a700e34275480b3856ea738122a7c57bdeb744a631251c069587a  -\n"
)

// TestTranslationIsSwitched: a store has bases and snapshots of machines that translate and of those that do not. Each kind of process
// makes a base of its own, once, and takes the snapshots of both.
func TestTranslationIsSwitched(t *testing.T) {
	if testing.Short() {
		t.Skip("boots machines")
	}
	if t.Setenv("AGENTVM_DEBUG", ""); !machine.TranslatesByDefault(platform.RISCV64) {
		t.Skip("nothing is translated here")
	}
	c := vm.Config{StoreDir: t.TempDir(), Image: "busybox", Memory: 96 << 20} // a Program of their own: those of a process share it by store
	saved := map[string]string{}
	for i, word := range []string{"nojit", "", "nojit", ""} {
		t.Setenv("AGENTVM_DEBUG", word)
		v, fromBase := startOne(t, c)
		if fromBase != (i >= 2) {
			t.Errorf("start %d with AGENTVM_DEBUG=%q: from a base %v", i, word, fromBase)
		}
		wantOutput(t, v, busy, busyDone)
		wantOutput(t, v, "echo kept >/root/file", "")
		if saved[word] == "" {
			saved[word] = filepath.Join(c.StoreDir, "snapshots", "of"+word+".snap")
			if _, err := v.Snapshot(limited(t), saved[word], vm.SnapshotOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		closeWithBase(t, c, v)
	}
	for _, word := range []string{"nojit", ""} {
		t.Setenv("AGENTVM_DEBUG", word)
		for of, path := range saved {
			v, err := vm.Restore(limited(t), path, vm.Config{StoreDir: c.StoreDir}, vm.RestoreOptions{})
			if err != nil {
				t.Errorf("with %q, a snapshot of one with %q: %v", word, of, err)
				continue
			}
			wantOutput(t, v, "cat /root/file", "kept\n")
			wantOutput(t, v, busy, busyDone)
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
