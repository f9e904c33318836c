package mount

import (
	"context"
	"log/slog"
	"testing"
)

// panicHandler fails a test when the server had to recover from a panic.
type panicHandler struct{ t testing.TB }

func failOnPanic(t testing.TB) *slog.Logger { return slog.New(panicHandler{t}) }

func (h panicHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}
func (h panicHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h panicHandler) WithGroup(string) slog.Handler      { return h }

func (h panicHandler) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		h.t.Errorf("%s: %v", a.Key, a.Value)
		return true
	})
	return nil
}
