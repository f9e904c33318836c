package preview

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func isPrivate(info fs.FileInfo) bool {
	return runtime.GOOS == "windows" || info.Mode().Perm()&0o077 == 0
}

func TestCreateAndCheck(t *testing.T) {
	clock := newClock()
	s := openStore(t, filepath.Join(t.TempDir(), "new", "previews.db"), Options{Now: clock.Now})
	p := create(t, s, "dev", 3000, 0)
	want := Preview{ID: p.ID, VM: "dev", VMID: "dev-id", Port: 3000, Created: clock.Now(), Expires: clock.Now().Add(time.Hour), Token: p.Token}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("preview (-want +got):\n%s", diff)
	}
	got, err := s.Check(t.Context(), p.Token)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("checked (-want +got):\n%s", diff)
	}
}

func TestLifetime(t *testing.T) {
	for _, c := range []struct {
		name       string
		most, asks time.Duration
		want       time.Duration
	}{
		{"default", 0, 0, time.Hour},
		{"as asked", 0, 90 * time.Second, 90 * time.Second},
		{"the longest", 0, 24 * time.Hour, 24 * time.Hour},
		{"capped", 0, 48 * time.Hour, 24 * time.Hour},
		{"capped by the options", 10 * time.Minute, time.Hour, 10 * time.Minute},
		{"default capped by the options", 10 * time.Minute, 0, 10 * time.Minute},
		{"less than a second", 0, time.Millisecond, time.Second},
		{"whole seconds", 0, 1900 * time.Millisecond, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newClock()
			s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{Now: clock.Now, MaxLifetime: c.most})
			p := create(t, s, "dev", 80, c.asks)
			if got := p.Expires.Sub(clock.Now()); got != c.want {
				t.Errorf("it lives %v, want %v", got, c.want)
			}
			clock.advance(c.want - time.Nanosecond)
			if _, err := s.Check(t.Context(), p.Token); err != nil {
				t.Errorf("just before its end: %v", err)
			}
			clock.advance(time.Nanosecond)
			if _, err := s.Check(t.Context(), p.Token); !errors.Is(err, ErrExpired) {
				t.Errorf("at its end: %v", err)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	clock := newClock()
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{Now: clock.Now})
	for _, c := range []struct {
		name, vm string
		port     uint16
		lifetime time.Duration
		want     string
	}{
		{"no name", "", 80, 0, "name"},
		{"long name", strings.Repeat("x", 2000), 80, 0, "name"},
		{"port 0", "dev", 0, 0, "port 0"},
		{"negative", "dev", 80, -time.Second, "cannot expire"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := s.Create(t.Context(), c.vm, "id", c.port, c.lifetime); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	clock.advance(100 * 365 * 24 * time.Hour)
	if _, err := s.Create(t.Context(), "dev", "id", 80, 0); err == nil {
		t.Error("a time that tokens cannot express was taken")
	}
}

func TestLimitPerVM(t *testing.T) {
	clock := newClock()
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{Now: clock.Now})
	var first Preview
	for i := range MaxPerVM {
		p := create(t, s, "dev", 80, time.Duration(i+1)*time.Minute)
		if i == 0 {
			first = p
		}
	}
	full := func(when string, want bool) {
		t.Helper()
		_, err := s.Create(t.Context(), "dev", "dev-id", 80, time.Hour)
		if errors.Is(err, ErrLimit) != want || err != nil && !want {
			t.Errorf("%s: error %v, ErrLimit wanted: %v", when, err, want)
		}
	}
	full("128 are active", true)
	create(t, s, "other", 80, 0)
	if err := s.Revoke(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	full("one is revoked", false)
	full("and replaced", true)
	clock.advance(2 * time.Minute)
	full("one more has expired", false)
	full("and was replaced", true)
}

func TestRevoke(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{})
	byID, byToken, stays := create(t, s, "dev", 1, 0), create(t, s, "dev", 2, 0), create(t, s, "dev", 3, 0)
	for _, name := range []string{byID.ID, byID.ID, byToken.Token} { // twice is no error
		if err := s.Revoke(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, p := range []Preview{byID, byToken} {
		if _, err := s.Check(t.Context(), p.Token); !errors.Is(err, ErrRevoked) {
			t.Errorf("port %d: %v", p.Port, err)
		}
	}
	if _, err := s.Check(t.Context(), stays.Token); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]error{"": ErrUnknown, "x": ErrUnknown, "0123456789abc": ErrUnknown, (Token{}).ID(): ErrUnknown, strings.Repeat("0", 63): ErrForged} {
		if err := s.Revoke(t.Context(), name); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
}

func TestRevokeAllAndList(t *testing.T) {
	clock := newClock()
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{Now: clock.Now})
	var ports []uint16
	list := func(vm string) (got []uint16) {
		t.Helper()
		all, err := s.List(t.Context(), vm)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if _, err := s.Check(t.Context(), p.Token); err != nil {
				t.Errorf("a listed token of port %d: %v", p.Port, err)
			}
			got = append(got, p.Port)
		}
		return got
	}
	for i := range uint16(3) {
		create(t, s, "dev", 100+i, time.Duration(i+1)*time.Hour)
		clock.advance(time.Second)
		ports = append(ports, 100+i)
	}
	create(t, s, "other", 7, 0)
	if diff := cmp.Diff(append(ports, 7), list("")); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	clock.advance(time.Hour)
	if diff := cmp.Diff(ports[1:], list("dev")); diff != "" {
		t.Errorf("after an hour (-want +got):\n%s", diff)
	}
	if n, err := s.RevokeAll(t.Context(), "dev"); n != 2 || err != nil {
		t.Errorf("%d revoked, %v", n, err)
	}
	if got := list("dev"); got != nil {
		t.Errorf("after RevokeAll: %v", got)
	}
}

func countRows(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.writes.QueryRow("SELECT count(*) FROM preview").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCollect(t *testing.T) {
	clock := newClock()
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{Now: clock.Now})
	for _, hours := range []time.Duration{1, 1, 2, 3} {
		create(t, s, "dev", 80, hours*time.Hour)
	}
	revoked := create(t, s, "dev", 80, time.Hour)
	if err := s.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Hour)
	if n, err := s.Collect(t.Context()); n != 3 || err != nil {
		t.Errorf("%d collected, %v; want 3", n, err)
	}
	clock.advance(time.Hour)
	create(t, s, "dev", 80, time.Hour) // collects, too
	if n := countRows(t, s); n != 2 {
		t.Errorf("%d rows are left, want 2", n)
	}
}

// TestRevokedAreBounded revokes more than are remembered.
func TestRevokedAreBounded(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{})
	other := create(t, s, "other", 80, 0)
	if err := s.Revoke(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
	first, err := s.newRow("dev", "dev-id", 80, 0)
	if err != nil {
		t.Fatal(err)
	}
	// As many as are remembered, revoked long ago. Making each by Create takes a minute.
	_, err = s.writes.Exec(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO preview (nonce, vm, vm_id, port, created, expires, revoked) SELECT randomblob(8), ?, ?, ?, ?, ?, i FROM n`,
		maxRevoked, first.vm, first.vmID, first.port, first.created, first.expires)
	if err != nil {
		t.Fatal(err)
	}
	var fresh []Preview
	for range 3 {
		fresh = append(fresh, create(t, s, "dev", 80, 0))
	}
	if n, err := s.RevokeAll(t.Context(), "dev"); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if n := countRows(t, s); n != maxRevoked+1 {
		t.Errorf("%d rows, want %d and that of the other VM", n, maxRevoked)
	}
	for _, p := range append(fresh, other) {
		if _, err := s.Check(t.Context(), p.Token); !errors.Is(err, ErrRevoked) {
			t.Errorf("the newest: %v", err)
		}
	}
}

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
	clock := newClock()
	path := filepath.Join(t.TempDir(), "previews.db")
	s := openStore(t, path, Options{Now: clock.Now})
	good, revoked, short := create(t, s, "dev", 1, 0), create(t, s, "dev", 2, 0), create(t, s, "dev", 3, time.Minute)
	if err := s.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clock.advance(2 * time.Minute)
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
	clock := newClock()
	path := filepath.Join(t.TempDir(), "previews.db")
	s := openStore(t, path, Options{Now: clock.Now})
	before := create(t, s, "dev", 80, 24*time.Hour)
	if err := s.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := create(t, s, "dev", 80, time.Hour)
	clock.advance(24*time.Hour - time.Second)
	if _, err := s.Check(t.Context(), before.Token); err != nil {
		t.Errorf("a link of the old key, in its last second: %v", err)
	}
	if _, err := s.Check(t.Context(), after.Token); !errors.Is(err, ErrExpired) {
		t.Errorf("one of the new key, long ago: %v", err)
	}
	clock.advance(time.Second)
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

func TestStoreRefuses(t *testing.T) {
	database := func(statement string) func(path string) error {
		return func(path string) error {
			db, err := sql.Open("sqlite", path)
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

// TestTogether makes, checks, revokes and rotates at once, through two stores. What was revoked stays so in everybody's eyes.
func TestTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "previews.db")
	stores := []*Store{openStore(t, path, Options{}), openStore(t, path, Options{})}
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			mine, other := stores[i%2], stores[(i+1)%2]
			for range 10 {
				p, err := mine.Create(t.Context(), "dev", "id", 80, 0)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := other.Check(t.Context(), p.Token); err != nil {
					t.Errorf("new: %v", err)
				}
				if i == 0 {
					if err := mine.Rotate(t.Context()); err != nil && !strings.Contains(err.Error(), "wait until") {
						t.Error(err)
					}
				}
				if err := other.Revoke(t.Context(), p.ID); err != nil {
					t.Error(err)
				}
				for _, s := range stores {
					if _, err := s.Check(t.Context(), p.Token); !errors.Is(err, ErrRevoked) {
						t.Errorf("revoked: %v", err)
					}
				}
			}
		})
	}
	wait.Wait()
}

func TestCheckIsCancelled(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{})
	p := create(t, s, "dev", 80, 0)
	s.reload <- struct{}{} // somebody is reading, for long
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Check(ctx, p.Token); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-s.reload
}
