package wasi

import (
	"io"
	"testing"
	"time"
)

func TestStreamGuestNeverBlocks(t *testing.T) {
	g := newGuest(t, Config{})
	st := NewStream(4)
	g.sys.SetFile(5, st)
	vec, buf := g.iovec(3, 3)
	n := g.alloc(4)

	g.want(ErrnoAgain, "fd_read", 5, vec, 2, n)
	if _, err := st.Host().Write([]byte("abcd")); err != nil {
		t.Fatal(err)
	}
	if got := g.sys.TakeReady(); got != 1<<5 {
		t.Errorf("ready = %#x, want bit 5", got)
	}
	g.want(ErrnoSuccess, "fd_read", 5, vec, 2, n)
	if got := string(g.bytes(buf, 4)); g.u32(n) != 4 || got != "abcd" {
		t.Errorf("read %d bytes %q", g.u32(n), got)
	}
	g.want(ErrnoSuccess, "fd_write", 5, vec, 2, n)
	if g.u32(n) != 4 {
		t.Errorf("wrote %d bytes into a stream of 4", g.u32(n))
	}
	g.want(ErrnoAgain, "fd_write", 5, vec, 2, n)
	if got := g.sys.TakeReady(); got != 0 {
		t.Errorf("ready = %#x before there is room", got)
	}
	got := make([]byte, 3)
	if _, err := io.ReadFull(st.Host(), got); err != nil || string(got) != "abc" {
		t.Errorf("host read %q, %v", got, err)
	}
	if got := g.sys.TakeReady(); got != 1<<5 {
		t.Errorf("ready = %#x after the host made room, want bit 5", got)
	}
}

func TestStreamEnds(t *testing.T) {
	g := newGuest(t, Config{})
	st := NewStream(16)
	g.sys.SetFile(5, st)
	vec, _ := g.iovec(8)
	n := g.alloc(4)

	h := st.Host()
	if _, err := h.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := h.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	g.want(ErrnoSuccess, "fd_read", 5, vec, 1, n)
	if g.u32(n) != 1 {
		t.Errorf("read %d bytes, want the one before the end", g.u32(n))
	}
	g.want(ErrnoSuccess, "fd_read", 5, vec, 1, n)
	if g.u32(n) != 0 {
		t.Errorf("read %d bytes, want the end", g.u32(n))
	}
	g.want(ErrnoSuccess, "fd_write", 5, vec, 1, n)
	time.AfterFunc(10*time.Millisecond, func() { _ = g.sys.Close() })
	got, err := io.ReadAll(h)
	if err != nil || len(got) != 8 {
		t.Errorf("host read %d bytes, %v; want 8 and the end", len(got), err)
	}
	if _, err := h.Write([]byte("x")); err != io.ErrClosedPipe {
		t.Errorf("host write after close: %v", err)
	}
}

// Bytes arrive whole and in order while both sides run.
func TestStreamCarriesBytes(t *testing.T) {
	g := newGuest(t, Config{})
	st := NewStream(1000)
	g.sys.SetFile(0, st)
	g.sys.SetFile(1, NewOutput(nil))
	const total = 1 << 20
	echoed := make(chan error, 1)
	go func() { // returns every byte plus one, until the guest closes
		h := st.Host()
		buf := make([]byte, 300)
		for {
			n, err := h.Read(buf)
			if err != nil {
				echoed <- err
				return
			}
			for i := range buf[:n] {
				buf[i]++
			}
			if _, err := h.Write(buf[:n]); err != nil {
				echoed <- err
				return
			}
		}
	}()
	sent, received := 0, 0
	buf := make([]byte, 777)
	for received < total {
		progress := false
		for i := range buf {
			buf[i] = byte((sent + i) % 251)
		}
		if n, errno := st.Write(buf[:min(len(buf), total-sent)]); errno == ErrnoSuccess && n > 0 {
			sent, progress = sent+n, true
		}
		n, errno := st.Read(buf)
		if errno == ErrnoSuccess {
			progress = true
			for i, b := range buf[:n] {
				if want := byte((received+i)%251) + 1; b != want {
					t.Fatalf("byte %d is %d, want %d", received+i, b, want)
				}
			}
			received += n
		}
		if !progress {
			if err := g.sys.Wait(g.ctx, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			if g.sys.TakeReady() == 0 {
				t.Fatal("nothing changed for ten seconds: a wake-up was lost")
			}
		}
	}
	if err := g.sys.Close(); err != nil {
		t.Error(err)
	}
	if err := <-echoed; err != io.EOF && err != io.ErrClosedPipe {
		t.Errorf("host's end: %v", err)
	}
}

// TestStreamDirect has short messages answered in the guest's write.
func TestStreamDirect(t *testing.T) {
	g := newGuest(t, Config{})
	st := NewStream(8)
	g.sys.SetFile(5, st)
	host, n := st.Host(), g.alloc(4)
	write, buf := g.iovec(3)
	read, got := g.iovec(8)
	copy(g.bytes(buf, 3), "ask")
	takes, arrived := true, make(chan string)
	go func() {
		text := make([]byte, 6)
		_, _ = io.ReadFull(host, text[:3])
		_, _ = io.ReadFull(host, text[3:])
		arrived <- string(text)
	}()
	waits := func() {
		for idle := false; !idle; time.Sleep(time.Millisecond) {
			st.mu.Lock()
			idle = st.idle
			st.mu.Unlock()
		}
	}
	waits()
	host.Direct(4, func(message []byte, answer func([]byte)) bool {
		if string(message) != "ask" {
			t.Errorf("offered %q", message)
		}
		if m, _ := host.writeSome([]byte("12345678")); m != 4 { // another goroutine's
			t.Errorf("wrote %d bytes beside an answer of 4 into 8", m)
		}
		if takes {
			answer([]byte("done"))
		}
		return takes
	})
	g.want(ErrnoSuccess, "fd_write", 5, write, 1, n)
	if st.output.size() != 0 || g.sys.TakeReady() != 1<<5 {
		t.Error("the host got what was answered, or the guest no answer")
	}
	g.want(ErrnoSuccess, "fd_read", 5, read, 1, n)
	if text := string(g.bytes(got, 8)); text != "1234done" {
		t.Errorf("read %q", text)
	}
	takes = false
	g.want(ErrnoSuccess, "fd_write", 5, write, 1, n)
	g.want(ErrnoSuccess, "fd_read", 5, read, 1, n) // the other goroutine's
	waits()
	host.Direct(0, nil)
	g.want(ErrnoSuccess, "fd_write", 5, write, 1, n)
	if text := <-arrived; text != "askask" {
		t.Errorf("the host read %q", text)
	}
	host.Direct(4, func([]byte, func([]byte)) bool { t.Error("offered while the host does not wait"); return true })
	g.want(ErrnoSuccess, "fd_write", 5, write, 1, n)
}
