package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"agentvm/vm"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// isNull says whether f is the null device: then the command gets the guest's own, which costs less.
func isNull(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return true // closed
	}
	// Windows numbers only what lies on a disk: there pipes and the console would be the same file as the null device.
	if info.Mode()&os.ModeCharDevice == 0 || isTerminal(f) {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}

// attachTerminal gives the command a terminal and makes this one pass every key on. restore undoes that.
func (c *cli) attachTerminal(command *vm.Command, s *session) (restore func(), err error) {
	command.Terminal = &vm.Size{Columns: 80, Rows: 24}
	if size, ok := terminalSize(c.stdout); ok {
		command.Terminal = &size
	}
	if !isTerminal(c.stdin) {
		return func() {}, nil
	}
	if command.Stdin != nil {
		command.Stdin = &escapeReader{from: c.stdin, session: s, lineStart: true}
	}
	fd := int(c.stdin.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	return func() { _ = term.Restore(fd, state) }, nil
}

func terminalSize(f *os.File) (vm.Size, bool) {
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		return vm.Size{}, false
	}
	return vm.Size{Columns: uint16(min(columns, 65535)), Rows: uint16(min(rows, 65535))}, true
}

const ctrlC = 3

// escapeReader watches what is typed for the two ways to leave a VM that no longer answers: "~." at the start of a
// line, and two Ctrl-C in a row where session.window allows it. The VM gets everything all the same. What the terminal
// itself answers to a program's questions is not typed: a shell asks where the cursor is before each prompt.
type escapeReader struct {
	from      io.Reader
	session   *session
	leave     func() // what ~. does. Default: giving up, as by an interrupt
	lineStart bool
	tilde     bool
	sequence  sequence
}

// Read reads what was typed, and what the terminal says.
func (r *escapeReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	for _, b := range p[:n] {
		r.see(b)
	}
	return n, err
}

func (r *escapeReader) see(b byte) {
	switch r.sequence.next(b) {
	case partOfSequence, terminalAnswer:
		return
	case typedSequence:
		r.tilde, r.lineStart = false, false
		return
	}
	switch {
	case b == ctrlC:
		r.session.typedInterrupt()
	case b == '.' && r.tilde && r.leave != nil:
		r.leave()
	case b == '.' && r.tilde:
		r.session.giveUp(signalInterrupt)
	}
	r.tilde = b == '~' && r.lineStart
	r.lineStart = b == '\r' || b == '\n'
}
