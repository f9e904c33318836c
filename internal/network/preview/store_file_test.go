package preview

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/test/testclock"
)

// TestProcesses has two stores of one file, as two processes have.
func TestProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "previews.db")
	a, b := openStore(t, path, Options{}), openStore(t, path, Options{})
	for range 20 {
		p := create(t, a, "dev", 80, 0)
		if _, err := b.Check(t.Context(), p.Token); err != nil {
			t.Fatalf("what a made, b does not know: %v", err)
		}
		if err := b.Revoke(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Check(t.Context(), p.Token); !errors.Is(err, ErrRevoked) {
			t.Fatalf("what b revoked, a takes: %v", err)
		}
	}
}

func TestRestart(t *testing.T) {
	clock := testclock.New()
	path := filepath.Join(t.TempDir(), "previews.db")
	s := openStore(t, path, Options{Now: clock.Now})
	good, revoked, short := create(t, s, "dev", 1, 0), create(t, s, "dev", 2, 0), create(t, s, "dev", 3, time.Minute)
	if err := s.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clock.Advance(2 * time.Minute)
	s = openStore(t, path, Options{Now: clock.Now})
	for _, c := range []struct {
		p    Preview
		want error
	}{{good, nil}, {revoked, ErrRevoked}, {short, ErrExpired}} {
		if _, err := s.Check(t.Context(), c.p.Token); !errors.Is(err, c.want) {
			t.Errorf("port %d: %v, want %v", c.p.Port, err, c.want)
		}
	}
}

func TestRotateKeepsLinks(t *testing.T) {
	clock := testclock.New()
	path := filepath.Join(t.TempDir(), "previews.db")
	s := openStore(t, path, Options{Now: clock.Now})
	before := create(t, s, "dev", 80, 24*time.Hour)
	if err := s.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := create(t, s, "dev", 80, time.Hour)
	clock.Advance(24*time.Hour - time.Second)
	if _, err := s.Check(t.Context(), before.Token); err != nil {
		t.Errorf("a link of the old key, in its last second: %v", err)
	}
	if _, err := s.Check(t.Context(), after.Token); !errors.Is(err, ErrExpired) {
		t.Errorf("one of the new key, long ago: %v", err)
	}
	clock.Advance(time.Second)
	if _, err := s.Check(t.Context(), before.Token); err == nil {
		t.Error("a token of the old key is taken after its end")
	}
}

// TestLostStore has a genuine token that the store does not know, and one that says something else than its row.
func TestLostStore(t *testing.T) {
	directory := t.TempDir()
	key := filepath.Join(directory, "key")
	a := openStore(t, filepath.Join(directory, "a.db"), Options{KeyPath: key})
	b := openStore(t, filepath.Join(directory, "b.db"), Options{KeyPath: key})
	p := create(t, a, "dev", 80, 0)
	if _, err := b.Check(t.Context(), p.Token); !errors.Is(err, ErrUnknown) {
		t.Errorf("a token of another store: %v", err)
	}
	token, err := a.key.Verify(p.Token)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Token){
		"port": func(t *Token) { t.Port++ },
		"VM":   func(t *Token) { t.Identity = IdentityOf("dev", "another") },
		"time": func(t *Token) { t.Expires = t.Expires.Add(time.Hour) },
	} {
		changed := token
		change(&changed)
		if _, err := a.Check(t.Context(), sign(t, a.key, changed)); !errors.Is(err, ErrForged) {
			t.Errorf("genuine for another %s: %v", name, err)
		}
	}
}

func TestStoreIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "previews?#%20.db")
	s := openStore(t, path, Options{})
	create(t, s, "dev", 80, 0)
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) < 3 { // database, WAL, its index, key
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		info, err := file.Info()
		if err != nil || !isPrivate(info) {
			t.Errorf("%s: %v, %v", file.Name(), info, err)
		}
		if !strings.HasPrefix(file.Name(), "preview") {
			t.Errorf("SQLite made %s", file.Name())
		}
	}
}

// TestStoreBehindLink: the files beside it are beside what the link leads to.
func TestStoreBehindLink(t *testing.T) {
	folder, link := t.TempDir(), filepath.Join(t.TempDir(), "previews.db")
	if err := os.Symlink(filepath.Join(folder, "target.db"), link); err != nil {
		t.Skip(err)
	}
	s := openStore(t, link, Options{})
	create(t, s, "dev", 80, 0)
	for _, name := range []string{"target.db", "target.db-wal", "target.db-shm"} {
		if info, err := os.Stat(filepath.Join(folder, name)); err != nil || !isPrivate(info) {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestStoreRefuses(t *testing.T) {
	database := func(statement string) func(path string) error {
		return func(path string) error {
			db, err := sql.Open("sqlite3", path)
			if err != nil {
				return err
			}
			_, err = db.Exec(statement)
			return errors.Join(err, db.Close())
		}
	}
	for _, c := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"text", func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("no database ", 100)), 0o600) }, "not a database"},
		{"of something else", database("CREATE TABLE x (y)"), "something else"},
		{"of another application", database("PRAGMA application_id = 7"), "something else"},
		{"of a later version", database("PRAGMA application_id = 0x61767076; PRAGMA user_version = 2"), "later version"},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o700) }, "director"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "previews.db")
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			if s, err := OpenStore(path, Options{}); err == nil {
				s.Close()
				t.Error("it was opened")
			} else if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestClosedStore(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{})
	p := create(t, s, "dev", 80, 0)
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	_, create := s.Create(t.Context(), "dev", "", 80, 0)
	_, list := s.List(t.Context(), "")
	_, check := s.Check(t.Context(), p.Token)
	_, all := s.RevokeAll(t.Context(), "dev")
	for i, err := range []error{create, list, check, all, s.Revoke(t.Context(), p.ID), s.Rotate(t.Context())} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}
