package guestrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shelfLayer is a layer of a shelf: two parts of entries.
type shelfLayer struct {
	s    *shelf
	left int
}

var _ LayersHandler = (*shelf)(nil)

func (s *shelf) Layer(target string) (LayerHandler, LayerState, error) {
	if target == "/no" {
		return nil, LayerState{}, &fs.PathError{Op: "layer", Path: target, Err: fs.ErrNotExist}
	}
	return &shelfLayer{s, 2}, LayerState{time.Unix(7, 8), 9}, nil
}

func (l *shelfLayer) Next() (entries []LayerEntry, err error) {
	if l.left--; l.left < 0 {
		return nil, io.EOF
	}
	for i := range 300 {
		entries = append(entries, LayerEntry{
			Path: fmt.Sprint("d/", l.left, i), Kind: LayerKind(i % 3), Base: strings.Repeat("b", i), Torn: i%2 == 1, Info: FileInfo{Mode: 0o640, Size: int64(i), Modified: time.Unix(1, 2), Target: "t"},
		})
	}
	return entries, nil
}

func (l *shelfLayer) Open(path string) (FileHandler, error) { return l.s.Open(path, OpenOptions{}) }

func (l *shelfLayer) Begin(apply uint64) error {
	return fmt.Errorf("apply %d: %w", apply, fs.ErrPermission)
}

func (l *shelfLayer) Settle(entries []LayerEntry, began time.Time) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for _, e := range entries {
		l.s.took = fmt.Append(l.s.took, e.Path, "=", e.Base, "\n")
	}
	if !began.IsZero() {
		l.s.took = fmt.Append(l.s.took, began.UnixNano())
	}
	return nil
}

func (l *shelfLayer) Discard(paths []string, now time.Time) error {
	return fmt.Errorf("discard %q at %d: %w", paths, now.UnixNano(), fs.ErrPermission)
}

func (l *shelfLayer) Pack(_ context.Context, w io.Writer) (Summary, error) {
	n, err := io.WriteString(w, "packed")
	return Summary{Entries: 3, Bytes: int64(n)}, err
}

func (l *shelfLayer) Close() error { return l.s.close() }

// useLayer calls every method of a layer and ignores the errors.
func useLayer(ctx context.Context, c *FilesClient) {
	l, err := c.Layer(ctx, "/src")
	if err != nil {
		return
	}
	for range 4 {
		_, _ = l.Next(ctx)
	}
	_, _ = l.Pack(ctx, io.Discard)
	if f, err := l.Open(ctx, "d/f"); err == nil {
		_, _ = f.WriteTo(ctx, io.Discard, 0)
		_ = f.Close()
	}
	_ = errors.Join(l.Begin(ctx, 1), l.Settle(ctx, []LayerEntry{{Path: "d/f", Base: "b"}}, time.Unix(1, 2)), l.Discard(ctx, []string{"d"}, time.Unix(1, 2)), l.Close())
}

func TestLayer(t *testing.T) {
	host, port := net.Pipe()
	s := &shelf{content: []byte("content")}
	serveFilesOn(t, port, s)
	ctx := t.Context()
	c, err := DialFiles(ctx, host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Layer(ctx, "/no"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("%v", err)
	}
	if _, err := c.Layer(ctx, "relative"); err == nil || !strings.Contains(err.Error(), "not absolute") {
		t.Errorf("%v", err)
	}
	l, err := c.Layer(ctx, "/src")
	if err != nil || !l.State().Began.Equal(time.Unix(7, 8)) || l.State().Interrupted != 9 {
		t.Fatal(err)
	}
	var got, want []LayerEntry
	for {
		part, err := l.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, part...)
	}
	for h := (&shelfLayer{s, 2}); h.left > 0; {
		part, _ := h.Next()
		want = append(want, part...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	f, err := l.Open(ctx, "d/f")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if _, err := f.WriteTo(ctx, &b, 0); err != nil || b.String() != "content" {
		t.Errorf("%q, %v", b.String(), err)
	}
	_ = f.Close()
	many := make([]LayerEntry, maxEntries+1) // two messages, of which the last has the time
	for i := range many {
		many[i] = LayerEntry{Path: fmt.Sprint(i), Base: "b"}
	}
	if err := l.Settle(ctx, many, time.Unix(0, 5)); err != nil || !strings.HasPrefix(string(s.took), "0=b\n1=b\n") || !strings.HasSuffix(string(s.took), "512=b\n5") {
		t.Errorf("%v, %d bytes", err, len(s.took))
	}
	var packed strings.Builder
	if summary, err := l.Pack(ctx, &packed); err != nil || summary.Entries != 3 || packed.String() != "packed" {
		t.Errorf("packed %q, %+v, %v", packed.String(), summary, err)
	}
	if err := l.Begin(ctx, 1<<63); err == nil || !strings.Contains(err.Error(), "apply 9223372036854775808") {
		t.Errorf("%v", err)
	}
	if err := l.Discard(ctx, []string{"a", "b"}, time.Unix(0, 6)); err == nil || !strings.Contains(err.Error(), `discard ["a" "b"] at 6`) {
		t.Errorf("%v", err)
	}
	for name, err := range map[string]error{"NUL": l.Discard(ctx, []string{"a\x00"}, time.Time{}), "too many": l.Discard(ctx, make([]string, maxPaths+1), time.Time{})} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	_ = l.Close()
}
