package lograte

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestHandler(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1e9, 0)
	inner := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})
	h := New(inner, func() time.Time { return now })
	if New(h, time.Now) != h {
		t.Error("there are two of them")
	}
	log := slog.New(h)
	lines := func(what string) int {
		t.Helper()
		n := strings.Count(out.String(), what)
		out.Reset()
		return n
	}
	for i := range 1000 {
		log.With("flow", i).Warn("refused")
		log.WithGroup("group").Error("refused")
	}
	if n := lines("msg=refused"); n != burst {
		t.Errorf("%d lines at once", n)
	}
	log.Warn("another")
	if n := lines("msg=another"); n != 1 {
		t.Errorf("%d lines of another message", n)
	}
	now = now.Add(pause)
	log.Warn("refused")
	if text := out.String(); !strings.Contains(text, fmt.Sprintf(`"left out before"=%d`, 2000-burst)) {
		t.Errorf("after a pause: %s", text)
	}
	out.Reset()
	log.Warn("refused")
	if n := lines("refused"); n != 0 {
		t.Errorf("%d lines too early", n)
	}
	now = now.Add(1e6 * pause)
	for range 1000 {
		log.Info("refused")
	}
	if n := lines("msg=refused"); n != burst {
		t.Errorf("%d lines after a long time", n)
	}
	for range 1000 {
		log.Debug("refused")
	}
	if n := lines("msg=refused"); n != 1000 {
		t.Errorf("%d lines for who debugs", n)
	}
	// Messages that a guest makes up are bounded, too, and so is what is kept of them.
	for i := range 100_000 {
		log.Warn(fmt.Sprint("made up ", i))
	}
	if n := lines("made up"); n > maxMessages+burst {
		t.Errorf("%d lines of messages that are made up", n)
	}
	if n := len(h.state.messages); n > maxMessages+1 {
		t.Errorf("%d messages are kept", n)
	}
}

// TestAround: what is put behind a handler gets what it passes on, within the same bound, and the next New does not bound that again.
func TestAround(t *testing.T) {
	var out, told bytes.Buffer
	h := New(slog.NewTextHandler(&out, nil), time.Now)
	around := h.Around(func(slog.Handler) slog.Handler { return slog.NewTextHandler(&told, nil) })
	if New(around, time.Now) != around {
		t.Error("records are bounded twice")
	}
	for range burst - 1 {
		slog.New(h).Warn("refused")
	}
	for range 3 {
		slog.New(around).Warn("refused")
	}
	if n, m := strings.Count(out.String(), "refused"), strings.Count(told.String(), "refused"); n != burst-1 || m != 1 {
		t.Errorf("%d lines before, %d around", n, m)
	}
}

// TestTogether has many goroutines log one message.
func TestTogether(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(New(slog.NewTextHandler(&out, nil), func() time.Time { return time.Unix(1e9, 0) }))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				log.Warn("refused")
			}
		})
	}
	all.Wait()
	if n := strings.Count(out.String(), "\n"); n != burst {
		t.Errorf("%d lines", n)
	}
}
