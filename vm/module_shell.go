package vm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"agentvm/internal/work/headtail"
)

// moduleShell runs one command by the shell on a console, on which everything else may also write. Each thing that the shell says to the
// host is a line that begins with a marker, which no program that is not meant to can guess:
//
//	prelude (an argument of the module) ──► MARKER<        the console is there; \r before \n here means that it adds one to each line
//	a line of the script              ──► MARKER+        one at a time: a console holds 4 KiB
//	a dot: the script is complete     ──► MARKER= output MARKER>code
//
// The script is not an argument of the module, because container2wasm passes arguments, environment and mounts in 1024 bytes.
type moduleShell struct {
	command Command
	marker  string
	lines   []string // of the script, encoded
	out     io.Writer
	kept    *headtail.Buffer // nil where the command has a writer
	console io.Writer        // gets what is no output of the command

	acks     chan struct{} // the shell is ready for the next line
	running  chan struct{} // closed when the command runs
	done     chan struct{} // closed when it has ended
	inputErr chan error    // the command's standard input cannot be passed on

	// Of the goroutine that runs the module.
	state    moduleState
	crlf     bool
	held     []byte // what may be the beginning of a mark
	acked    int
	began    time.Time
	exitCode int
	writeErr error
}

type moduleState int

const (
	moduleBoots moduleState = iota // until the console is there
	moduleReads                    // the script
	moduleRuns                     // the command
	moduleEnded
)

// scriptLine is the most bytes of one encoded line.
const scriptLine = 1000

func newModuleShell(c Command, script string) *moduleShell {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails
	s := &moduleShell{
		command: c, marker: "agentvm" + hex.EncodeToString(secret[:]), out: c.Stdout,
		acks: make(chan struct{}, 1), running: make(chan struct{}), done: make(chan struct{}), inputErr: make(chan error, 1),
	}
	if s.out == nil {
		s.kept = headtail.New(cmp.Or(c.MaxOutput, DefaultMaxOutput))
		s.out = s.kept
	}
	// Through cat, so that programs do not take the console for a terminal of a user's. The mark of the end takes the same way: it comes after
	// all output, and waits for no program that is left in the background.
	s.lines = encodeScript("printf '\\n%s=\\n' $m\nagentvm_run() {\n" + script + "\nprintf '\\n%s>%d\\n' $m $?\n}\n" +
		"if cat </dev/null 2>/dev/null; then agentvm_run 2>&1 | cat; else agentvm_run; fi\n")
	return s
}

// prelude is what the module's shell executes first. It has no newline, no backslash before a space and no empty word, because the entry
// of container2wasm quotes those in ways of its own.
func (s *moduleShell) prelude() string {
	return `stty -echo -opost 2>/dev/null;m=` + s.marker + `;printf '\n%s<\n' $m;s=;while IFS= read -r l&&[ "$l" != . ];` +
		`do s=$s$l;printf '\n%s+\n' $m;done;eval "$(printf %b "$s")"`
}

// encodeScript makes lines of a script that the guest's printf %b turns back. What a console could take for a key, and what is not
// ASCII, is in octal.
func encodeScript(script string) (lines []string) {
	var b strings.Builder
	for i := range len(script) {
		switch c := script[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(" _-/=,:;'\"$&|<>()[]{}+*?!#@", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\0%03o`, c)
		}
		if b.Len() >= scriptLine {
			lines = append(lines, b.String())
			b.Reset()
		}
	}
	return append(lines, b.String())
}

// feed writes the script and then the command's standard input to the console, until ctx ends or to is closed.
func (s *moduleShell) feed(ctx context.Context, to *io.PipeWriter) {
	for i := range len(s.lines) + 1 {
		select {
		case <-s.acks:
		case <-ctx.Done():
			return
		}
		line := "."
		if i < len(s.lines) {
			line = s.lines[i]
		}
		if _, err := io.WriteString(to, line+"\n"); err != nil {
			return
		}
	}
	if s.command.Stdin == nil {
		return // the command's input is /dev/null, and the console has none
	}
	select {
	case <-s.running: // what comes earlier would be read as script by a shell that has not read all
	case <-ctx.Done():
		return
	}
	console := &consoleInput{w: to}
	if _, err := io.Copy(console, s.command.Stdin); err != nil {
		if !errors.Is(err, io.ErrClosedPipe) { // which the module's end closes
			s.inputErr <- err // has room
		}
		return
	}
	end := "\x04" // a terminal's end of input, at the beginning of a line
	if console.line > 0 {
		end = "\x04\x04"
	}
	_, _ = io.WriteString(to, end) // an error means that the module has ended
}

const (
	// consoleLine is the most bytes of a line that Linux's terminals keep (N_TTY_BUF_SIZE), less its newline and one that they reserve.
	consoleLine = 4096 - 2
	// consoleKeys are the bytes that the guest's terminal takes for keys, such as ^C and ^D, and ^A, which TinyEMU takes for its own: with an x
	// behind it, that ends the emulator.
	consoleKeys = "\x01\x03\x04\b\r\x0f\x11\x12\x13\x15\x16\x17\x1a\x1c\x7f"
)

// consoleInput passes on what arrives as it is at a program that reads from a console. Anything else is an error.
type consoleInput struct {
	w    io.Writer
	line int // bytes of the line that has begun
}

func (c *consoleInput) Write(p []byte) (int, error) {
	for i, b := range p {
		switch {
		case b == '\n':
			c.line = 0
			continue
		case strings.IndexByte(consoleKeys, b) >= 0:
			return i, fmt.Errorf("it has the byte %#02x, which the console of a WASI module takes for a key: pass it in a file of a mount", b)
		case c.line == consoleLine:
			return i, fmt.Errorf("it has a line of more than %d bytes, which the console of a WASI module cuts: pass it in a file of a mount", consoleLine)
		}
		c.line++
	}
	return c.w.Write(p)
}

// Write takes what the console shows. The module's goroutine calls it.
func (s *moduleShell) Write(p []byte) (int, error) {
	s.held = append(s.held, p...)
	for s.state < moduleRuns && s.takeMark() {
	}
	if s.state == moduleRuns {
		s.takeOutput()
	}
	if s.state == moduleEnded {
		s.held = nil
	}
	return len(p), nil
}

// takeMark takes the next whole mark before the command runs, with all before it, and reports whether there was one.
func (s *moduleShell) takeMark() bool {
	at := bytes.Index(s.held, []byte(s.marker))
	if at < 0 {
		s.leave(len(s.held) - len(s.marker) + 1)
		return false
	}
	s.leave(at)
	mark, rest, whole := bytes.Cut(s.held[len(s.marker):], []byte("\n"))
	if !whole && len(mark) < 3 {
		return false
	}
	kind := string(bytes.TrimSuffix(mark, []byte("\r")))
	switch {
	case whole && kind == "<" && s.state == moduleBoots:
		s.state, s.crlf = moduleReads, bytes.HasSuffix(mark, []byte("\r"))
		s.acks <- struct{}{} // has room: feed has not begun
	case whole && kind == "+" && s.state == moduleReads && s.acked < len(s.lines):
		s.acked++
		select {
		case s.acks <- struct{}{}:
		default: // more than were asked for: a shell that is none
		}
	case whole && kind == "=" && s.state == moduleReads:
		s.state, s.began = moduleRuns, time.Now()
		close(s.running)
	default: // the prelude, where something prints the module's arguments
		s.leave(len(s.marker))
		return true
	}
	s.held = rest
	return true
}

// leave drops n bytes that are no output of the command.
func (s *moduleShell) leave(n int) {
	if n > 0 {
		_, _ = s.console.Write(s.held[:n]) // a headtail.Buffer never fails
		s.held = s.held[n:]
	}
}

// takeOutput passes output on up to the mark of the end, or to what may become it.
func (s *moduleShell) takeOutput() {
	mark := []byte("\n" + s.marker + ">")
	for s.state == moduleRuns {
		at := bytes.Index(s.held, mark)
		if at < 0 {
			keep := len(s.held)
			if last := bytes.LastIndexByte(s.held, '\n'); last >= 0 && bytes.HasPrefix(mark, s.held[last:]) {
				keep = last
			}
			if keep > 0 && s.held[keep-1] == '\r' {
				keep--
			}
			s.emit(keep)
			return
		}
		text, _, whole := bytes.Cut(s.held[at+len(mark):], []byte("\n"))
		if !whole && len(text) <= 4 {
			return
		}
		code, err := strconv.Atoi(string(bytes.TrimSuffix(text, []byte("\r"))))
		if !whole || err != nil || code < 0 || code > 255 {
			s.emit(at + len(mark)) // the command has read the marker somewhere
			continue
		}
		if s.crlf && at > 0 && s.held[at-1] == '\r' {
			at--
		}
		s.emit(at)
		s.exitCode, s.state = code, moduleEnded
		close(s.done)
	}
}

// emit passes n bytes of output on.
func (s *moduleShell) emit(n int) {
	if n == 0 {
		return
	}
	p := s.held[:n]
	if s.crlf {
		p = bytes.ReplaceAll(p, []byte("\r\n"), []byte("\n"))
	}
	s.held = s.held[n:]
	if _, err := s.out.Write(p); err != nil {
		s.writeErr, s.state = err, moduleEnded
		close(s.done)
	}
}
