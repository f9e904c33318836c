//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/guest/guestrpc"
)

// host is a session of a host with a program, without the protocol.
type host struct {
	t   *testing.T
	p   guestrpc.Program
	got *[2][]byte // what has arrived since the first host
	end *guestrpc.ExitStatus
}

func (h *host) poll(ctx context.Context) {
	h.t.Helper()
	d, err := h.p.Poll(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	h.got[0], h.got[1] = append(h.got[0], d.Stdout...), append(h.got[1], d.Stderr...)
	h.end = d.Exit
}

func (h *host) received() uint64 { return uint64(len(h.got[0]) + len(h.got[1])) }

func newSupervisor(t *testing.T) *Supervisor {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// begin is what Start does about the programs of earlier sessions.
func begin(s *Supervisor, keys ...string) {
	s.mu.Lock()
	rest := s.keyed.await(keys)
	s.mu.Unlock()
	for _, h := range rest {
		h.program.Detach()
	}
}

func execKeyed(t *testing.T, s *Supervisor, key, script string) guestrpc.Program {
	t.Helper()
	p, _, err := s.Exec(t.Context(), guestrpc.Request{Args: []string{"/bin/sh", "-c", script}, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAdopt: hosts that are saved at any moment, the last delivery arrived in part or not at all, get each byte once and the exit.
func TestAdopt(t *testing.T) {
	s := newSupervisor(t)
	ctx := testContext(t)
	const lines = 20000
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; [ $((i%%10)) = 0 ] && echo e$i >&2; i=$((i+1)); done; exit 7", lines)
	h := &host{t: t, p: execKeyed(t, s, "a", script), got: &[2][]byte{}}
	random := rand.New(rand.NewPCG(1, 2))
	for saves := 0; h.end == nil; saves++ {
		for range random.IntN(3) {
			if h.end == nil {
				h.poll(ctx)
			}
		}
		if saves%3 == 0 { // a delivery that the host gets a part of, or nothing
			stale := h.p
			d, err := stale.Poll(ctx)
			if err != nil {
				t.Fatal(err)
			}
			n, m := len(d.Stdout), 0
			if cut := random.IntN(n + len(d.Stderr) + 1); cut < n {
				n = cut
			} else {
				m = cut - n
			}
			h.got[0], h.got[1] = append(h.got[0], d.Stdout[:n]...), append(h.got[1], d.Stderr[:m]...)
			h.end = nil
		}
		stale := h.p
		late := make(chan error, 1)
		begin(s, "a")
		stale.Detach()
		p, err := s.Adopt("a", h.received(), nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, err := stale.Poll(ctx); late <- err }() // of the earlier session
		h.p, h.end = p, nil
		h.poll(ctx)
		if err := <-late; !errors.Is(err, errTaken) {
			t.Fatalf("an earlier host's poll: %v", err)
		}
		stale.Release() // late, too
	}
	var want [2]strings.Builder
	for i := range lines {
		fmt.Fprintln(&want[0], i)
		if i%10 == 0 {
			fmt.Fprintf(&want[1], "e%d\n", i)
		}
	}
	if h.end.Code != 7 || string(h.got[0]) != want[0].String() || string(h.got[1]) != want[1].String() {
		t.Errorf("%+v, %d and %d bytes, want %d and %d", h.end, len(h.got[0]), len(h.got[1]), want[0].Len(), want[1].Len())
	}
	h.p.Release()
	if _, err := s.Adopt("a", 0, nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("after the release: %v", err)
	}
}

// TestAdoptHeld: a program that ends while its start is answered needs no adoption, and its key is free again.
func TestAdoptHeld(t *testing.T) {
	s := newSupervisor(t)
	for range 2 {
		p, d, err := s.Exec(testContext(t), guestrpc.Request{Args: []string{"echo", "brief"}, Key: "brief", Hold: 10 * time.Second})
		if err != nil || p != nil || d.Exit == nil || string(d.Stdout) != "brief\n" {
			t.Fatalf("%v, %+v, %v", p, d, err)
		}
	}
	if _, err := s.Adopt("brief", 0, nil); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
}

// TestAdoptWaiting: a program without a host fills its buffer and its pipe, and waits. One that the next host does not ask for runs on and
// ends, and so does one whose session is seen to end only then.
func TestAdoptWaiting(t *testing.T) {
	s := newSupervisor(t)
	ctx := testContext(t)
	const flood = "head -c 2000000 /dev/zero; echo done >&2"
	for _, late := range []bool{false, true} {
		kept, left := execKeyed(t, s, "kept", flood), execKeyed(t, s, "left", flood)
		if _, _, err := s.Exec(ctx, guestrpc.Request{Args: []string{"true"}, Key: "kept"}); !errors.Is(err, syscall.EEXIST) {
			t.Errorf("a second program with the key: %v", err)
		}
		if !late {
			kept.Detach()
			left.Detach()
		}
		time.Sleep(50 * time.Millisecond)
		begin(s, "kept")
		if late {
			kept.Detach()
			left.Detach()
		}
		if _, err := s.Adopt("left", 0, nil); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("late %v: one that was not asked for: %v", late, err)
		}
		select {
		case <-left.(*holder).exited:
		case <-ctx.Done():
			t.Fatal("it does not run on")
		}
		select {
		case <-kept.(*holder).exited:
			t.Error("it does not wait")
		case <-time.After(50 * time.Millisecond):
		}
		p, err := s.Adopt("kept", 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		h := &host{t: t, p: p, got: &[2][]byte{}}
		for h.end == nil {
			h.poll(ctx)
		}
		if len(h.got[0]) != 2000000 || !bytes.Equal(h.got[1], []byte("done\n")) {
			t.Errorf("%d bytes, %q", len(h.got[0]), h.got[1])
		}
		p.Release()
	}
	// A session that ends without keeping its programs ends this one, too.
	p := execKeyed(t, s, "kept", "sleep 1000")
	p.Release()
	select {
	case <-p.(*holder).exited:
	case <-ctx.Done():
		t.Fatal("it was not killed")
	}
	if _, _, err := s.Exec(ctx, guestrpc.Request{Args: []string{"/nonexistent"}, Key: "kept"}); err != nil {
		t.Error(err)
	}
	execKeyed(t, s, "kept", "true").Release()
}
