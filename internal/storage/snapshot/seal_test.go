package snapshot

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Only what was written in a store is its own: not what was imported, copied, moved, replaced, or sealed by another store.
func TestOwn(t *testing.T) {
	s, ctx := openStore(t), t.Context()
	m := newMemory(300*PageSize, 1, 299)
	mine, err := s.Path("mine")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, mine, content(m)) // as package vm does, by its path
	var stream bytes.Buffer
	if err := s.Export(ctx, "mine", &stream); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(s.snapshots(), name+Suffix) }
	put := func(name string, b []byte) {
		if err := os.WriteFile(at(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := func(path string) bool { return openFile(t, path).Own() }

	if !own(mine) {
		t.Error("what the store has written is untrusted")
	}
	elsewhere := filepath.Join(t.TempDir(), "mine"+Suffix)
	if writeFile(t, elsewhere, content(newMemory(300*PageSize, 3))); own(elsewhere) {
		t.Error("a file outside of a store is taken for a store's own")
	}
	if err := s.WriteBase(ctx, "key", content(m)); err != nil {
		t.Fatal(err)
	}
	base, err := s.Base("key")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	if !base.Own() {
		t.Error("a base that the store has written is untrusted")
	}
	fork, err := s.NewFork()
	if err != nil {
		t.Fatal(err)
	}
	defer fork.Close()
	if writeFile(t, fork.Path(), content(m)); !own(fork.Path()) {
		t.Error("a fork's file, which a VM of the store has written, is untrusted")
	}
	if err := os.WriteFile(fork.Path(), readAll(t, elsewhere), 0o600); err != nil {
		t.Fatal(err)
	}
	if own(fork.Path()) {
		t.Error("a file that took the place of a fork's is taken for the store's own")
	}
	if err := s.Import(ctx, bytes.NewReader(stream.Bytes()), "imported", ImportLimits{}); err != nil {
		t.Fatal(err)
	}
	if own(at("imported")) {
		t.Error("an import is taken for the store's own")
	}
	put("copied", readAll(t, mine))
	if own(at("copied")) {
		t.Error("a copied file is taken for the store's own")
	}

	// Another store's file, with its seal.
	other := openStore(t)
	if err := other.Create(ctx, "theirs", content(newMemory(300*PageSize, 2))); err != nil {
		t.Fatal(err)
	}
	theirs, _ := other.Path("theirs")
	put("theirs", readAll(t, theirs))
	seal := readAll(t, sealPath(theirs))
	if err := os.WriteFile(sealPath(at("theirs")), seal, 0o600); err != nil {
		t.Fatal(err)
	}
	if own(at("theirs")) {
		t.Error("another store's seal is believed")
	}
	put("mine", readAll(t, theirs))
	if own(mine) {
		t.Error("a file is taken for the one that it replaced")
	}
}

// What is layered on an untrusted file has that one's pages in it.
func TestOwnNeedsItsBase(t *testing.T) {
	s, ctx := openStore(t), t.Context()
	m := newMemory(64*PageSize, 1, 9)
	if err := s.Create(ctx, "base", content(m)); err != nil {
		t.Fatal(err)
	}
	path, _ := s.Path("base")
	base := openFile(t, path)
	above := newMemory(64*PageSize, 1, 2, 9)
	if err := s.Create(ctx, "above", layer(above, base, m)); err != nil {
		t.Fatal(err)
	}
	upper, _ := s.Path("above")
	if !openFile(t, upper).Own() {
		t.Error("a layered file of the store is untrusted")
	}
	unseal(path)
	if openFile(t, upper).Own() {
		t.Error("a file layered on an untrusted file is taken for the store's own")
	}
}

// A base that another program put there, or whose writer was killed before it sealed it, does not count, and is replaced by the store's own.
func TestStrangersBase(t *testing.T) {
	s, ctx := openStore(t), t.Context()
	c := content(newMemory(64*PageSize, 1))
	if err := s.WriteBase(ctx, "key", c); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.bases(), "key"+Suffix)
	unseal(path)
	if f, err := s.Base("key"); !errors.Is(err, ErrUntrusted) {
		t.Errorf("Base() = %v, %v, want ErrUntrusted", f, err)
	}
	if err := s.WriteBase(ctx, "key", c); err != nil {
		t.Fatal(err)
	}
	f, err := s.Base("key")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Remove(filepath.Join(s.dir, keyName)); err != nil {
		t.Fatal(err)
	}
	if f, err = s.Base("key"); err != nil || f.Own() {
		t.Fatalf("without a key: %v", err)
	}
	f.Close()
}

// Keys and seals that other users can read, or that have a wrong form, do not count; seals are removed with their files.
func TestSealsAreKept(t *testing.T) {
	s, ctx := openStore(t), context.Background()
	m := newMemory(64*PageSize, 1)
	for _, name := range []string{"a", "b"} {
		if err := s.Create(ctx, name, content(m)); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := s.Path("a")
	b, _ := s.Path("b")
	key := filepath.Join(s.dir, keyName)
	seal := readAll(t, sealPath(a))
	for _, change := range []func() error{
		func() error { return os.Chmod(key, 0o644) },
		func() error { return os.Chmod(sealPath(a), 0o604) },
		func() error { return os.Truncate(sealPath(a), 31) },
		func() error { return os.Remove(key) },
	} {
		if !openFile(t, a).Own() {
			t.Fatal("it was not the store's own before")
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if openFile(t, a).Own() {
			t.Error("it is still taken for the store's own")
		}
		// All but the last, which is for good, is taken back.
		if err := os.Chmod(key, 0o600); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(sealPath(a), 0o600), os.WriteFile(sealPath(a), seal, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(sealPath(a)); err == nil {
		t.Error("a seal stays without its file")
	}
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	if err := s.Collect(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(sealPath(b)); err == nil {
		t.Error("a seal whose file was removed by others stays")
	}
}
