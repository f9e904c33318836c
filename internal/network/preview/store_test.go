package preview

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/test/testclock"
)

func isPrivate(info fs.FileInfo) bool {
	return runtime.GOOS == "windows" || info.Mode().Perm()&0o077 == 0
}

func TestCreateAndCheck(t *testing.T) {
	clock := testclock.New()
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
			clock := testclock.New()
			s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{Now: clock.Now, MaxLifetime: c.most})
			p := create(t, s, "dev", 80, c.asks)
			if got := p.Expires.Sub(clock.Now()); got != c.want {
				t.Errorf("it lives %v, want %v", got, c.want)
			}
			clock.Advance(c.want - time.Nanosecond)
			if _, err := s.Check(t.Context(), p.Token); err != nil {
				t.Errorf("just before its end: %v", err)
			}
			clock.Advance(time.Nanosecond)
			if _, err := s.Check(t.Context(), p.Token); !errors.Is(err, ErrExpired) {
				t.Errorf("at its end: %v", err)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	clock := testclock.New()
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
	clock.Advance(100 * 365 * 24 * time.Hour)
	if _, err := s.Create(t.Context(), "dev", "id", 80, 0); err == nil {
		t.Error("a time that tokens cannot express was taken")
	}
}

func TestLimitPerVM(t *testing.T) {
	clock := testclock.New()
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
	if _, err := s.Create(t.Context(), "dev", "a-later-id", 80, 0); err != nil {
		t.Errorf("previews of a VM that is no more count for the next of its name: %v", err)
	}
	if err := s.Revoke(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	full("one is revoked", false)
	full("and replaced", true)
	clock.Advance(2 * time.Minute)
	full("one more has expired", false)
	full("and was replaced", true)
}

func countRows(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.writes.QueryRow("SELECT count(*) FROM preview").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCollect(t *testing.T) {
	clock := testclock.New()
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{Now: clock.Now})
	for _, hours := range []time.Duration{1, 1, 2, 3} {
		create(t, s, "dev", 80, hours*time.Hour)
	}
	revoked := create(t, s, "dev", 80, time.Hour)
	if err := s.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Hour)
	if n, err := s.Collect(t.Context()); n != 3 || err != nil {
		t.Errorf("%d collected, %v; want 3", n, err)
	}
	clock.Advance(time.Hour)
	create(t, s, "dev", 80, time.Hour) // collects, too
	if n := countRows(t, s); n != 2 {
		t.Errorf("%d rows are left, want 2", n)
	}
}

func TestCheckIsCancelled(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "previews.db"), Options{})
	p := create(t, s, "dev", 80, 0)
	s.reload <- struct{}{} // another reader is slow
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Check(ctx, p.Token); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-s.reload
}
