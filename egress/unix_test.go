package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnixSockets(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := filepath.Join(dir, "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	var mu sync.Mutex
	var got []string
	released := 0
	given := map[string]HostSocket{"/run/s": {Path: "shown", Open: func() (string, func(), error) { return at, func() { released++ }, nil }}, "/run/gone": {Path: filepath.Join(dir, "gone")}}
	u := NewUnixSockets(given, func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, e.Kind+" "+e.Verdict+" "+clip(e.Names[0])+" "+e.Reason)
	})
	given["/run/late"] = HostSocket{Path: at} // the table is the gate's own
	for _, tt := range []struct {
		name, give string
		want       error // nil: connects
	}{
		{"given", "/run/s", nil},
		{"not given", "/run/docker.sock", new(DeniedError)},
		{"a path of the host", at, new(DeniedError)},
		{"added to the caller's map", "/run/late", new(DeniedError)},
		{"empty", "", new(DeniedError)},
		{"huge", strings.Repeat("x", 1<<20), new(DeniedError)},
		{"given, but without a listener", "/run/gone", new(net.OpError)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := u.Dial(t.Context(), tt.give)
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
					t.Errorf("read %q, %v", b, err)
				}
				return
			}
			switch tt.want.(type) {
			case *DeniedError:
				denied(t, err, ReasonNotSocket)
			default:
				if op := (*net.OpError)(nil); !errors.As(err, &op) {
					t.Errorf("error %v, want a %T", err, tt.want)
				}
			}
		})
	}
	if released != 1 {
		t.Errorf("released %d times", released)
	}
	mu.Lock()
	defer mu.Unlock()
	want := []string{
		"unix allow /run/s ", "unix deny /run/docker.sock not-a-socket", "unix deny " + clip(at) + " not-a-socket",
		"unix deny /run/late not-a-socket", "unix deny  not-a-socket", "unix deny " + strings.Repeat("x", 30) + " not-a-socket",
		"unix error /run/gone ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestNoUnixSockets(t *testing.T) {
	var u *UnixSockets
	_, err := u.Dial(context.Background(), "/run/s")
	denied(t, err, ReasonNotSocket)
}

func clip(s string) string { return s[:min(len(s), 30)] }
