package vm_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// A flipped bit of a base on the disk is noticed, even if nothing fails because of it: by a start, or when a VM has run for a
// while. The base is removed, and a good one replaces it.
func TestDamagedBaseIsNoticed(t *testing.T) {
	c := ownKind(t)
	v, _ := startOne(t, c)
	v.Close()
	path := baseFile(c, v)
	f, err := snapshot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	regions := f.Memory()
	last := regions[len(regions)-1] // decoded code, or the guest's last pages: a wrong bit there has no effect
	f.Close()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	at := last.Offset + last.Length - 1
	if _, err := file.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := file.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	damaged, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	v, fromBase := startOne(t, c) // its one piece may be another one; else the base has gone, and the new one may have its inode number
	wantOutput(t, v, "echo works", "works\n")
	deadline := time.Now().Add(time.Minute)
	for fromBase {
		if info, err := os.Stat(path); err != nil || !os.SameFile(info, damaged) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the damaged base is still there")
		}
		time.Sleep(50 * time.Millisecond)
	}
	v.Close()
	for range 2 {
		v, _ = startOne(t, c)
		v.Close()
	}
	if v, fromBase = startOne(t, c); !fromBase {
		t.Errorf("there is no new base %s", vm.BaseKey(v))
	}
}

// A damaged base that a snapshot is layered on is never used again, and the warning names the snapshot.
func TestDamagedBaseBelowASnapshot(t *testing.T) {
	c, v := startFromBase(t)
	name := strings.ToLower(t.Name())
	if _, err := v.Snapshot(limited(t), filepath.Join(c.StoreDir, "snapshots", name+".snap"), vm.SnapshotOptions{Base: true}); err != nil {
		t.Fatal(err)
	}
	v.Close()
	if err := os.Truncate(baseFile(c, v), 1<<20); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	v, fromBase := startOne(t, c)
	v.Close()
	if fromBase || !strings.Contains(log.String(), name) {
		t.Errorf("from a base: %t; the log has not %s: %s", fromBase, name, log.String())
	}
	log.Reset()
	v, fromBase = startOne(t, c)
	v.Close()
	if !fromBase || log.Len() > 0 {
		t.Errorf("there is no new base, or still talk of the old one: %s", log.String())
	}
}
