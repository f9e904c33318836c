//go:build linux

package guest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// quietPipe returns the ends of a pipe, which are closed with the test.
func quietPipe(t *testing.T) (out, in *quietFile) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	out, in = newQuietFile(ends[0]), newQuietFile(ends[1])
	t.Cleanup(func() { out.Close(); in.Close() })
	return out, in
}

func TestQuietFile(t *testing.T) {
	out, in := quietPipe(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // many times what fits into a pipe
	written := make(chan error, 1)
	go func() {
		_, err := in.Write(want)
		written <- errors.Join(err, in.Close())
	}()
	got, err := io.ReadAll(out)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes, %v; want %d", len(got), err, len(want))
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// What happens to the file wakes no goroutine unless one waits for it.
func TestQuietFileIsQuiet(t *testing.T) {
	out, in := quietPipe(t)
	read := make(chan int)
	b := make([]byte, 100)
	go func() {
		n, _ := out.Read(b) // waits, so it makes the epoll instance
		read <- n
	}()
	for range 6000 { // until the goroutine waits
		time.Sleep(10 * time.Millisecond)
		if out.mu.Lock(); out.readable.armed {
			out.mu.Unlock()
			break
		}
		out.mu.Unlock()
	}
	if _, err := in.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if n := <-read; n != 1 {
		t.Fatalf("read %d bytes", n)
	}
	ready := func() int {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(out.readable.number), Events: unix.POLLIN}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, err := in.Write([]byte("b")); err != nil {
		t.Fatal(err)
	}
	if ready() != 0 {
		t.Error("a byte that no goroutine waits for makes the epoll instance ready")
	}
	if n, err := out.Read(b); n != 1 || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

func TestQuietFileClose(t *testing.T) {
	empty, _ := quietPipe(t)
	_, full := quietPipe(t)
	ended := make(chan error, 2)
	go func() { _, err := empty.Read(make([]byte, 1)); ended <- err }()
	go func() { _, err := full.Write(make([]byte, 1<<20)); ended <- err }()
	time.Sleep(20 * time.Millisecond)
	if err := errors.Join(empty.Close(), full.Close()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Errorf("a waiting call ended with %v", err)
		}
	}
	if _, err := empty.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read after Close: %v", err)
	}
	if err := empty.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}
