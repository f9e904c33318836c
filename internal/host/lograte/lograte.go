// Package lograte bounds the lines of a log that others can cause at will: a guest has many ways to make its host warn of something.
package lograte

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// burst is how many records of one message are logged at once, and pause after how long there may be another one.
	burst = 20
	pause = time.Minute
	// maxMessages bounds how many messages are distinguished: those beyond count as one, for texts of guests may be in messages.
	maxMessages = 256
)

// Handler passes on records from Info on as often as their message may be logged. The next record of a message has how many were left out. It may be
// used from several goroutines, and shares its state with those that WithAttrs and WithGroup return.
type Handler struct {
	next  slog.Handler
	state *state
}

type state struct {
	now      func() time.Time
	mu       sync.Mutex
	messages map[string]*message
}

type message struct {
	left    int       // that may be logged now
	since   time.Time // when left was right
	dropped int
}

// New returns a handler before next, or next if it is one already.
func New(next slog.Handler, now func() time.Time) *Handler {
	if h, is := next.(*Handler); is {
		return h
	}
	return &Handler{next, &state{now: now, messages: make(map[string]*message)}}
}

// Around returns a handler that shares the state of h, and passes on to what wrap makes of the next handler.
func (h *Handler) Around(wrap func(next slog.Handler) slog.Handler) *Handler {
	return &Handler{wrap(h.next), h.state}
}

// Enabled is the next handler's.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle passes a record on, or counts it.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return h.next.Handle(ctx, r)
	}
	dropped, may := h.state.take(r.Message)
	if !may {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left out before", dropped))
	}
	return h.next.Handle(ctx, r)
}

// take says whether a message may be logged now, and how many were not before.
func (s *state) take(text string) (dropped int, may bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	m := s.messages[text]
	if m == nil && len(s.messages) >= maxMessages {
		text = ""
		m = s.messages[text]
	}
	if m == nil {
		m = &message{left: burst, since: now}
		s.messages[text] = m
	}
	if n := int64(now.Sub(m.since) / pause); n > 0 {
		m.left = int(min(burst, int64(m.left)+n))
		m.since = m.since.Add(time.Duration(n) * pause)
	}
	if m.left == 0 {
		m.dropped++
		return 0, false
	}
	m.left--
	dropped, m.dropped = m.dropped, 0
	return dropped, true
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{h.next.WithAttrs(attrs), h.state}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.next.WithGroup(name), h.state}
}
