package vm_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/host/buildid"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/storage/translations"
	"agentvm/vm"
)

// TestTranslationsAreKept: what a VM has translated is in the store when it has ended, and VMs whose process begins anew use it.
func TestTranslationsAreKept(t *testing.T) {
	if testing.Short() {
		t.Skip("boots machines")
	}
	if t.Setenv("AGENTVM_DEBUG", ""); !machine.TranslatesByDefault(platform.RISCV64) || buildid.Read() == "" {
		t.Skip("nothing is translated or kept here")
	}
	c := vm.Config{StoreDir: t.TempDir(), Image: "busybox", Memory: 96 << 20} // a Program of their own: those of a process share it by store
	run := func() {
		v, _ := startOne(t, c)
		wantOutput(t, v, busy, busyDone)
		closeWithBase(t, c, v)
	}
	run()
	packs, err := filepath.Glob(filepath.Join(c.StoreDir, translations.Folder, "*.pack"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("nothing was kept: %v", err)
	}
	long := time.Now().Add(-48 * time.Hour)
	for _, path := range packs {
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
	}
	run()
	for _, path := range packs {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > 24*time.Hour { // one may be merged with what is new
			t.Errorf("%s was not used", path)
		}
	}
}
