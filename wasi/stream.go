package wasi

import (
	"io"
	"sync"
)

// Stream is a bounded two-way pipe of bytes between the guest and a host goroutine.
//
//	host  Write ──► input  ──► Read  guest
//	host  Read  ◄── output ◄── Write guest
//
// The guest's side is a [File] that never blocks: an empty input or a full output is ErrnoAgain, and a write may be
// partial. The host's side ([Stream.Host]) blocks. Ready bits are edges: the guest's bit is set when bytes or the end
// arrive, and when there is room again after a write that found too little; a guest therefore reads or writes until
// ErrnoAgain or a short count before it waits.
//
// After the host's Close or CloseWrite the guest reads what is left and then the end of the file. After the host's Close
// the guest's writes fail with ErrnoPipe. After the guest's side is closed (fd_close, System.Close) the host reads what
// is left and then io.EOF, and its writes fail with io.ErrClosedPipe.
//
// The host may answer short messages within the guest's write ([StreamHost.Direct]), which spares both sides the switch between goroutines.
type Stream struct {
	mu      sync.Mutex
	arrived sync.Cond // the host waits here for output, and
	taken   sync.Cond // here for room in input: for each only what it waits for wakes it
	notify  func()    // nil while detached
	input   ring      // host to guest
	output  ring      // guest to host

	inputEnded  bool // the host will write no more
	hostClosed  bool // the host will not read either
	guestClosed bool
	wantRoom    bool // the guest found too little room in output

	direct   func(message []byte, answer func([]byte)) bool // nil: all goes through output
	room     int                                            // what an answer of direct may take
	reserved bool                                           // direct runs, and its room in input is its own
	idle     bool                                           // the host waits in Read, and has had all output
}

// NewStream returns a Stream that holds up to capacity bytes in each direction. At least one byte is held.
func NewStream(capacity int) *Stream {
	s := new(Stream)
	s.init(capacity)
	return s
}

func (s *Stream) init(capacity int) {
	s.input, s.output = newRing(capacity), newRing(capacity)
	s.arrived.L, s.taken.L = &s.mu, &s.mu
}

// Stat describes the stream as a socket.
func (s *Stream) Stat() (Filestat, Errno) {
	return Filestat{Type: FiletypeSocketStream, Nlink: 1}, ErrnoSuccess
}

// Fdflags returns that the guest's side does not block.
func (s *Stream) Fdflags() Fdflags { return FdNonblock }

// SetFdflags accepts any flags; the System implements the only one that matters, NONBLOCK.
func (s *Stream) SetFdflags(Fdflags) Errno { return ErrnoSuccess }

// Attach sets the function to call when the guest's side becomes ready. It is called at once if it is ready now.
func (s *Stream) Attach(notify func()) {
	s.mu.Lock()
	s.notify = notify
	pending := s.input.size() > 0 || s.inputEnded
	s.mu.Unlock()
	if pending && notify != nil {
		notify()
	}
}

// Read takes bytes that the host wrote.
func (s *Stream) Read(p []byte) (int, Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.input.read(p)
	switch {
	case n > 0:
		s.taken.Broadcast()
		return n, ErrnoSuccess
	case s.inputEnded || len(p) == 0:
		return 0, ErrnoSuccess
	}
	return 0, ErrnoAgain
}

// Write gives bytes to the host.
func (s *Stream) Write(p []byte) (int, Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered(p) {
		return len(p), ErrnoSuccess
	}
	if s.hostClosed || s.guestClosed {
		return 0, ErrnoPipe
	}
	n := s.output.write(p)
	if n < len(p) {
		s.wantRoom = true
	}
	if n == 0 && len(p) > 0 {
		return 0, ErrnoAgain
	}
	s.arrived.Broadcast()
	return n, ErrnoSuccess
}

// answered offers bytes to direct, when the host has read all that came before and waits for more, and says whether it has taken them. mu is not held meanwhile.
func (s *Stream) answered(p []byte) bool {
	if s.direct == nil || s.reserved || s.hostClosed || s.guestClosed || !s.idle || s.output.size() > 0 || s.inputRoom() < s.room {
		return false
	}
	direct := s.direct
	s.reserved = true
	s.mu.Unlock()
	taken := direct(p, s.answer)
	s.mu.Lock()
	s.reserved = false
	s.taken.Broadcast() // for who waits for the room
	return taken
}

// answer adds an answer of direct to the input.
func (s *Stream) answer(p []byte) {
	s.mu.Lock()
	s.input.write(p)
	notify := s.notify
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
}

// inputRoom is how much the host may write.
func (s *Stream) inputRoom() int {
	if s.reserved {
		return max(0, s.input.room()-s.room)
	}
	return s.input.room()
}

// Poll says whether the guest could read or write now.
func (s *Stream) Poll(e Event) Readiness {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e == EventRead {
		n := s.input.size()
		return Readiness{Ready: n > 0 || s.inputEnded, Hangup: s.inputEnded, Bytes: uint64(n)}
	}
	room := s.output.room()
	s.wantRoom = s.wantRoom || room == 0
	ended := s.hostClosed || s.guestClosed
	return Readiness{Ready: room > 0 || ended, Hangup: ended, Bytes: uint64(room)}
}

// peek copies what Read would take.
func (s *Stream) peek(p []byte) (int, Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.input.peek(p); n > 0 || s.inputEnded || len(p) == 0 {
		return n, ErrnoSuccess
	}
	return 0, ErrnoAgain
}

// full says whether the host can add no more input until the guest reads.
func (s *Stream) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.input.room() == 0
}

// shutdown ends one or both directions for the guest.
func (s *Stream) shutdown(read, write bool) Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	if write {
		s.guestClosed = true
	}
	if read {
		s.inputEnded = true
		s.input.clear()
	}
	s.wakeAll()
	return ErrnoSuccess
}

// wakeAll has the host's goroutines look at what has ended.
func (s *Stream) wakeAll() {
	s.arrived.Broadcast()
	s.taken.Broadcast()
}

// Close ends the guest's side.
func (s *Stream) Close() error {
	s.shutdown(true, true)
	return nil
}

// Host returns the host's side. Its methods may be called from any goroutine; Read and Write block.
func (s *Stream) Host() *StreamHost { return &StreamHost{s} }

// StreamHost is the host's side of a [Stream].
type StreamHost struct{ s *Stream }

var _ io.ReadWriteCloser = (*StreamHost)(nil)

// Read blocks until the guest wrote something; io.EOF follows the last byte after the guest closed its side, and
// io.ErrClosedPipe the host's own Close.
func (h *StreamHost) Read(p []byte) (int, error) {
	s := h.s
	s.mu.Lock()
	for len(p) > 0 && s.output.size() == 0 && !s.guestClosed && !s.hostClosed {
		s.idle = true
		s.arrived.Wait()
	}
	s.idle = false
	if s.hostClosed {
		s.mu.Unlock()
		return 0, io.ErrClosedPipe
	}
	n := s.output.read(p)
	var notify func()
	if s.wantRoom && n > 0 {
		s.wantRoom, notify = false, s.notify
	}
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write blocks until the guest's input has taken all of p, or either side is closed.
func (h *StreamHost) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := h.writeSome(p[done:])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// writeSome waits for room and writes what fits.
func (h *StreamHost) writeSome(p []byte) (int, error) {
	s := h.s
	s.mu.Lock()
	for s.inputRoom() == 0 && !s.inputEnded {
		s.taken.Wait()
	}
	if s.inputEnded {
		s.mu.Unlock()
		return 0, io.ErrClosedPipe
	}
	n, notify := s.input.write(p[:min(len(p), s.inputRoom())]), s.notify
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
	return n, nil
}

// Direct has each write of the guest offered to a function while the host waits in Read for the first byte after all that came before. It runs in the guest's call, which it must
// not keep waiting, and returns true if it has taken the bytes, of which it keeps none; else they come with Read. Before it returns it may
// call answer, with room bytes at most in all. nil ends that; a call may be under way then.
func (h *StreamHost) Direct(room int, direct func(message []byte, answer func([]byte)) bool) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.room, h.s.direct = room, direct
}

// CloseWrite tells the guest that no more bytes follow; reading continues.
func (h *StreamHost) CloseWrite() error {
	h.end(false)
	return nil
}

// Close ends both directions. Blocked calls return, and bytes that the guest has not read yet stay readable.
func (h *StreamHost) Close() error {
	h.end(true)
	return nil
}

// end marks the host's side as ended and tells everybody.
func (h *StreamHost) end(both bool) {
	s := h.s
	s.mu.Lock()
	s.inputEnded = true
	s.hostClosed = s.hostClosed || both
	notify := s.notify
	s.wakeAll()
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
}
