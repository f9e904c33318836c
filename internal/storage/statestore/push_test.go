package statestore

import (
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
)

// TestDeriveKey has keys of a secret be age's own, the same each time, and others for other purposes.
func TestDeriveKey(t *testing.T) {
	secret := []byte("a secret of more than sixteen bytes")
	texts := map[string]string{}
	for _, purpose := range []string{"red", "blue", "red"} {
		text, err := DeriveKey(secret, purpose)
		if err != nil {
			t.Fatal(err)
		}
		if was := texts[purpose]; was != "" && was != text {
			t.Errorf("%s: another key", purpose)
		}
		texts[purpose] = text
		identity, err := age.ParseX25519Identity(strings.TrimSpace(text))
		if err != nil {
			t.Fatal(err)
		}
		if identity.String() != strings.TrimSpace(text) {
			t.Errorf("age writes %q otherwise", text)
		}
		if _, err := ParseKey([]byte(text)); err != nil {
			t.Error(err)
		}
	}
	if texts["red"] == texts["blue"] {
		t.Error("two purposes have one key")
	}
	if _, err := DeriveKey([]byte("short"), "red"); err == nil {
		t.Error("a short secret is accepted")
	}
}

// TestSince has what an earlier snapshot has not written again under another name, notes kept, and names listed.
func TestSince(t *testing.T) {
	s := open(t, serveS3(t, nil), newTestKey(t))
	m := memory(1, 1<<20)
	push := func(name, since string) Pushed {
		t.Helper()
		path := filepath.Join(t.TempDir(), "snapshot")
		write(t, path, m, nil, nil)
		done, err := s.Push(t.Context(), name, Push{File: openFile(t, path), Since: since, Note: []byte("note of " + name)})
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	push("vm.1", "vm.0") // the index has it
	copy(m[2<<20:], memory(2, 4<<20)[1<<20:5<<20])
	if second := push("vm.2", "vm.1"); second.Added < 4<<20 {
		t.Errorf("added %d bytes", second.Added)
	}
	copy(m[3<<20:], "changed")
	if third := push("vm.3", "vm.2"); third.Added > 1<<20 {
		t.Errorf("added %d bytes that the earlier snapshot has", third.Added)
	}
	read, err := s.Read(t.Context(), "vm.2")
	if err != nil || string(read.Note) != "note of vm.2" {
		t.Errorf("%q %v", read.Note, err)
	}
	names := map[string]bool{}
	for name, err := range s.Names(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	if len(names) != 3 || !names["vm.1"] || !names["vm.2"] {
		t.Error(names)
	}
	for name, want := range map[string]bool{"vm.1": true, "vm.4": false} {
		if exists, err := s.Exists(t.Context(), name); err != nil || exists != want {
			t.Errorf("%s: %v %v", name, exists, err)
		}
	}
}
