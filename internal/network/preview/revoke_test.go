package preview

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/test/testclock"
)

func TestRevoke(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{})
	byID, byToken, stays := create(t, s, "dev", 1, 0), create(t, s, "dev", 2, 0), create(t, s, "dev", 3, 0)
	for _, name := range []string{byID.ID, byID.ID, byToken.Token} { // twice is not an error
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
	clock := testclock.New()
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
		clock.Advance(time.Second)
		ports = append(ports, 100+i)
	}
	create(t, s, "other", 7, 0)
	if diff := cmp.Diff(append(ports, 7), list("")); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	clock.Advance(time.Hour)
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

// TestTogether makes, checks, revokes and rotates at once, through two stores. Every store sees what was revoked.
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
