package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"agentvm/internal/debugenv"
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
	c.log = slog.New(&logHandler{out: c.stderr, facets: c.facets, mu: &sync.Mutex{}})
	return nil
}

// logHandler prints a record as a line of plain text: these are messages to a person at a terminal.
type logHandler struct {
	facets facets
	attrs  string

	mu  *sync.Mutex // one line at a time
	out io.Writer
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
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.out, b.String())
	return err
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
