package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"agentvm/internal/host/debugenv"
)

// facets are the words of AGENTVM_DEBUG, separated by commas.
type facets struct {
	all     bool // "log", also --debug: everything that is logged
	timing  bool // "timing": how long the steps of a start take
	console bool // "console": a copy of the guest's console on standard error
}

// startLog reads the debug settings and makes the logger.
func (c *cli) startLog() error {
	c.facets.all = c.debug
	for _, word := range debugenv.All() {
		switch word {
		case "", "nojit", "jitstats", "nobase", "noconfine", "nowatchdog", "tcp": // the emulator's, vm's and daemon's
		case "log":
			c.facets.all = true
		case "timing":
			c.facets.timing = true
		case "console":
			c.facets.console = true
		default:
			return fmt.Errorf("AGENTVM_DEBUG: unknown word %q (known: log, timing, console, nojit, jitstats, nobase, noconfine, nowatchdog, tcp)", word)
		}
	}
	c.lines = &lines{out: c.stderr}
	c.log = slog.New(&logHandler{lines: c.lines, facets: c.facets})
	return nil
}

// logHandler prints a record as a line of plain text: these are messages to a person at a terminal.
type logHandler struct {
	facets facets
	attrs  string
	lines  *lines
}

// maxWaiting bounds the messages that wait for the guest to end its line.
const maxWaiting = 64

// lines keeps messages out of the lines of a command whose output goes to the same terminal.
type lines struct {
	mu      sync.Mutex // one line at a time
	out     io.Writer
	screen  bool // the command has the terminal, and may have any of its cells
	within  bool // the output has ended within a line
	waiting []string
}

// print prints a line of ours, now or when the command has ended its own.
func (l *lines) print(text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.screen || l.within {
		if len(l.waiting) < maxWaiting {
			l.waiting = append(l.waiting, text)
		}
		return nil
	}
	_, err := io.WriteString(l.out, text)
	return err
}

// begin is before a command; end is after it.
func (l *lines) begin(terminal bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.screen = terminal
}

func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.within && len(l.waiting) > 0 {
		_, _ = io.WriteString(l.out, "\n")
	}
	l.screen, l.within = false, false
	l.printWaitingLocked()
}

// wrote notes output of the command.
func (l *lines) wrote(p []byte) {
	if len(p) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.within = p[len(p)-1] != '\n'
	if !l.screen && !l.within {
		l.printWaitingLocked()
	}
}

func (l *lines) printWaitingLocked() {
	for _, text := range l.waiting {
		_, _ = io.WriteString(l.out, text)
	}
	l.waiting = nil
}

const timingPrefix = "timing: "

// Enabled says that warnings are always printed.
func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.facets.all || h.facets.timing
}

// Handle prints a record.
func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn && !h.facets.all && !strings.HasPrefix(r.Message, timingPrefix) {
		return nil
	}
	var b strings.Builder
	b.WriteString("agentvm: ")
	if r.Level < slog.LevelWarn {
		b.WriteString(r.Time.Format("15:04:05.000 "))
	}
	b.WriteString(r.Message)
	b.WriteString(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	b.WriteByte('\n')
	return h.lines.print(b.String())
}

// WithAttrs returns a handler that adds attrs to each line.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		with.attrs += fmt.Sprintf(" %s=%v", a.Key, a.Value)
	}
	return &with
}

// WithGroup leaves groups out: names are clear without.
func (h *logHandler) WithGroup(string) slog.Handler { return h }
