package bind

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

// Frames of a call. Numbers have 4 bytes, little-endian.
//
//	program ── length, name and arguments, each with a NUL at its end ─► host
//	program ◄─ 'o' or 'e', length, output ────────────────────────────── host
//	program ◄─ 'r', most bytes ───────────────────────────────────────── host
//	program ── length (0: the end), standard input ────────────────────► host   (one answer to each 'r')
//	program ◄─ 'x', exit code ────────────────────────────────────────── host, which closes the connection
//
// The program's end closes the connection, which ends the call.
const (
	maxArguments = 128 << 10 // bytes, with their NULs
	maxFrame     = 64 << 10  // bytes of a frame's data

	// maxCalls bounds the calls of a VM at once, with those that have not sent their arguments yet: each takes some 300 KiB at most.
	maxCalls = 16
	// argumentsTime bounds how long the arguments may take to arrive, and lingerTime how long a guest may take to read the end of a call.
	argumentsTime = 10 * time.Second
	lingerTime    = 5 * time.Second

	exitTimeout = 124 // as of timeout(1)
	exitRefused = 125
)

// Server executes the calls of one VM.
type Server struct {
	commands []Command
	calls    atomic.Int32
}

// NewServer takes a list that Check has returned. nil: there are no commands.
func NewServer(list []Command) *Server {
	if len(list) == 0 {
		return nil
	}
	return &Server{commands: list}
}

// Connect returns the connection of one call, which run executes as a goroutine that ends soon after ctx, if Command.Run does.
func (s *Server) Connect(ctx context.Context, run func(func()) error) (capnprpc.Stream, error) {
	if s.calls.Add(1) > maxCalls {
		s.calls.Add(-1)
		return nil, &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.EAGAIN, Message: fmt.Sprintf("too many calls of host commands (limit %d)", maxCalls)}
	}
	near, far := net.Pipe()
	err := run(func() {
		defer s.calls.Add(-1)
		s.serve(ctx, near)
	})
	if err != nil {
		s.calls.Add(-1)
		return nil, err
	}
	return stream{far}, nil
}

// stream is the guest's end of a call. The program never ends one direction alone.
type stream struct{ net.Conn }

func (s stream) CloseWrite() error { return s.Close() }

func (s *Server) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetReadDeadline(time.Now().Add(argumentsTime))
	words, err := readArguments(conn)
	if err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	out := &output{conn: conn}
	code := s.call(ctx, conn, out, words)
	_ = conn.SetWriteDeadline(time.Now().Add(lingerTime))
	out.frame('x', uint32(code), nil)
}

// call executes one call and returns its exit code.
func (s *Server) call(ctx context.Context, conn net.Conn, out *output, words []string) (code uint8) {
	stderr := sink{out, 'e'}
	i := slices.IndexFunc(s.commands, func(c Command) bool { return c.Name == words[0] })
	if i < 0 {
		fmt.Fprintf(stderr, "agentvm: the host has no command %.80q\n", words[0])
		return exitRefused
	}
	c, args := s.commands[i], words[1:]
	if slices.Equal(args, []string{"--help"}) && (c.Description != "" || len(c.Schema) > 0) {
		_, _ = io.WriteString(sink{out, 'o'}, c.help())
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Now().Add(lingerTime / 5)) })()
	in := &stdin{out: out, answers: make(chan []byte, 1), over: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() {
		in.receive(conn)
		cancel() // the program has ended
	})
	err := c.Run(ctx, Call{Name: c.Name, Args: args, Stdin: in, Stdout: sink{out, 'o'}, Stderr: stderr})
	timedOut := errors.Is(ctx.Err(), context.DeadlineExceeded)
	_ = in.Close()
	_ = conn.SetReadDeadline(time.Unix(1, 0))
	reading.Wait()
	_ = conn.SetWriteDeadline(time.Now().Add(lingerTime))
	var exit *ExitError
	switch {
	case timedOut && err != nil:
		fmt.Fprintf(stderr, "%s: the host has ended the command after %v\n", c.Name, c.Timeout)
		return exitTimeout
	case errors.As(err, &exit):
		return exit.Code
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", c.Name, err)
		return 1
	}
	return 0
}

// readArguments returns at least the name.
func readArguments(r io.Reader) ([]string, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > maxArguments {
		return nil, fmt.Errorf("arguments of %d bytes", n)
	}
	var b bytes.Buffer // grows with what arrives
	if _, err := io.CopyN(&b, r, int64(n)); err != nil {
		return nil, err
	}
	text, ended := strings.CutSuffix(b.String(), "\x00")
	if !ended {
		return nil, errors.New("arguments without an end")
	}
	return strings.Split(text, "\x00"), nil
}

// output writes frames.
type output struct {
	mu   sync.Mutex
	conn net.Conn
}

func (o *output) frame(kind byte, n uint32, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := binary.LittleEndian.AppendUint32(append(make([]byte, 0, 5+len(data)), kind), n)
	_, err := o.conn.Write(append(b, data...))
	return err
}

// sink is one stream of output.
type sink struct {
	out  *output
	kind byte
}

func (s sink) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), maxFrame)]
		if err := s.out.frame(s.kind, uint32(len(part)), part); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

// stdin asks the program for its standard input.
type stdin struct {
	out     *output
	wanted  atomic.Uint32 // bytes of the request that is not answered; 0: none
	answers chan []byte   // empty: the end
	over    chan struct{}
	close   sync.Once

	reading sync.Mutex // Read's
	rest    []byte
	ended   bool
}

func (s *stdin) Close() error {
	s.close.Do(func() { close(s.over) })
	return nil
}

func (s *stdin) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if len(s.rest) == 0 && !s.ended {
		n := uint32(min(len(p), maxFrame))
		s.wanted.Store(n)
		if err := s.out.frame('r', n, nil); err != nil {
			return 0, err
		}
		select {
		case s.rest = <-s.answers:
			s.ended = len(s.rest) == 0
		case <-s.over:
			return 0, io.ErrClosedPipe
		}
	}
	if s.ended {
		return 0, io.EOF
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// receive passes the program's answers on until it ends, or sends input for which the host has not asked. It never waits for the reader.
func (s *stdin) receive(r io.Reader) {
	defer func() { _ = s.Close() }()
	for {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		n := binary.LittleEndian.Uint32(head[:])
		if wanted := s.wanted.Swap(0); wanted == 0 || n > wanted {
			return
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		s.answers <- b // there is room: it is the one answer to the one request
	}
}
