package wasi

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// inputCapacity is how many bytes of standard input are read ahead.
const inputCapacity = 64 << 10

// NewInput returns the File of a standard input that reads from r; nil is an empty input. A regular file is read
// directly, which cannot block. Anything else is read ahead by a goroutine, which starts when the guest first reads or
// polls, so that a guest that never does takes nothing from a terminal.
//
// A Read that the operating system has blocked cannot be ended in general. Close therefore ends the goroutine where r has
// a read deadline that works (pipes and sockets) and waits for it; otherwise the goroutine ends when its Read returns,
// at the latest with the process, and what it read then is lost.
func NewInput(r io.Reader) File {
	if r == nil {
		return &emptyInput{}
	}
	in := &input{src: r, st: Filestat{Nlink: 1}, pipe: NewStream(inputCapacity)}
	f, ok := r.(*os.File)
	if !ok {
		return in
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		return &fileInput{f}
	}
	in.st = stdioStat(f)
	return in
}

// input is standard input that a goroutine reads ahead.
type input struct {
	src  io.Reader
	st   Filestat
	pipe *Stream

	once    sync.Once
	stopped chan struct{} // closed when the goroutine has ended; nil before it started
}

// start starts the goroutine.
func (in *input) start() {
	in.once.Do(func() {
		in.stopped = make(chan struct{})
		go in.pump()
	})
}

// pump copies the source to the pipe until either ends.
func (in *input) pump() {
	defer close(in.stopped)
	host := in.pipe.Host()
	_, _ = io.Copy(host, in.src) // a source that fails has ended; only the guest can learn of it
	_ = host.CloseWrite()        // cannot fail
}

// Stat describes the source.
func (in *input) Stat() (Filestat, Errno) { return in.st, ErrnoSuccess }

// Attach passes the function to the pipe.
func (in *input) Attach(notify func()) { in.pipe.Attach(notify) }

// Read takes what was read ahead.
func (in *input) Read(p []byte) (int, Errno) {
	in.start()
	return in.pipe.Read(p)
}

// Poll says whether there is something, or the end.
func (in *input) Poll(e Event) Readiness {
	in.start()
	return in.pipe.Poll(e)
}

// Close ends the reading as far as that is possible.
func (in *input) Close() error {
	_ = in.pipe.Close()   // cannot fail
	in.once.Do(func() {}) // no start from now on
	d, ok := in.src.(interface{ SetReadDeadline(time.Time) error })
	if in.stopped == nil || !ok || d.SetReadDeadline(time.Unix(1, 0)) != nil {
		return nil
	}
	<-in.stopped
	return d.SetReadDeadline(time.Time{})
}

// emptyInput has ended.
type emptyInput struct{}

func (emptyInput) Stat() (Filestat, Errno)  { return Filestat{Nlink: 1}, ErrnoSuccess }
func (emptyInput) Read([]byte) (int, Errno) { return 0, ErrnoSuccess }
func (emptyInput) Close() error             { return nil }

// fileInput is a regular file as standard input. It does not seek, so that a guest sees the same kind of stream wherever
// it comes from.
type fileInput struct{ f *os.File }

// Stat describes the file.
func (in *fileInput) Stat() (Filestat, Errno) { return stdioStat(in.f), ErrnoSuccess }

// Read reads on.
func (in *fileInput) Read(p []byte) (int, Errno) {
	n, err := in.f.Read(p)
	return n, readErrno(err)
}

// Close leaves the file open; it is the caller's.
func (in *fileInput) Close() error { return nil }

// output is standard output or standard error.
type output struct {
	w  io.Writer
	st Filestat
}

// NewOutput returns the File of a standard output that writes to w; nil discards. The guest waits for w.
func NewOutput(w io.Writer) File {
	if w == nil {
		w = io.Discard
	}
	out := &output{w: w, st: Filestat{Nlink: 1}}
	if f, ok := w.(*os.File); ok {
		out.st = stdioStat(f)
	}
	return out
}

// Stat describes the writer.
func (o *output) Stat() (Filestat, Errno) { return o.st, ErrnoSuccess }

// Write passes p on.
func (o *output) Write(p []byte) (int, Errno) {
	n, err := o.w.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		return n, ErrnoPipe
	}
	return n, errnoOf(err)
}

// Close leaves the writer open; it is the caller's.
func (o *output) Close() error { return nil }

// stdioStat describes a standard stream: whether it is a terminal, and nothing else of what the host's file happens to be.
// It has no size, because it does not seek, and no times. Guests take a character device without the right to seek for a
// terminal, which /dev/null is not.
func stdioStat(f *os.File) Filestat {
	info, err := f.Stat()
	// Fd makes a pipe blocking, and its read deadline useless; only a character device can be a terminal.
	if err == nil && info.Mode()&os.ModeCharDevice != 0 && term.IsTerminal(int(f.Fd())) {
		return Filestat{Nlink: 1, Type: FiletypeCharacterDevice}
	}
	return Filestat{Nlink: 1}
}
