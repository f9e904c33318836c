package daemon

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
)

// startLog is the daemon's log while its VM starts. What it warns of is also told to the clients that wait for the start: it may be why
// that takes long, as with a disk of the host that is full.
type startLog struct {
	slog.Handler
	report  func(slog.Level, string)
	started *atomic.Bool // then only the log is written
}

// Handle writes the record, and reports it.
func (l startLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && !l.started.Load() {
		line := strings.Builder{}
		line.WriteString(r.Message)
		r.Attrs(func(a slog.Attr) bool {
			line.WriteString(" " + a.String())
			return true
		})
		l.report(r.Level, line.String())
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs and WithGroup keep reporting.
func (l startLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	l.Handler = l.Handler.WithAttrs(attrs)
	return l
}

// WithGroup is as WithAttrs.
func (l startLog) WithGroup(name string) slog.Handler {
	l.Handler = l.Handler.WithGroup(name)
	return l
}
