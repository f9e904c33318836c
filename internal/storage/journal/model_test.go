package journal

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is all that was ever appended, with the stream of each byte.
type model struct {
	bytes    []byte
	streams  []Stream
	result   []byte
	finished bool
}

func (m *model) append(s Stream, p []byte) {
	m.bytes = append(m.bytes, p...)
	m.streams = append(m.streams, slices.Repeat([]Stream{s}, len(p))...)
}

// TestModel compares any sequence of appends, reads and reopenings with the whole output kept beside it.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	files := 0
	rapid.Check(t, func(t *rapid.T) {
		path := ""
		if rapid.Bool().Draw(t, "file") {
			files++
			path = filepath.Join(dir, fmt.Sprint(files))
		}
		c := Config{Head: rapid.Int64Range(1, 60_000).Draw(t, "head"), Tail: rapid.Int64Range(1, 300_000).Draw(t, "tail")}
		l, err := Create(path, c)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { l.Remove() }()
		m := &model{}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) { appendSome(t, l, m, rapid.IntRange(1, 100_000)) },
			"line":   func(t *rapid.T) { appendSome(t, l, m, rapid.IntRange(1, 80)) },
			"drops":  func(t *rapid.T) { drops(t, l, m) },
			"read":   func(t *rapid.T) { readSome(t, l, m, c) },
			"size":   func(t *rapid.T) { checkSize(t, l, m, c) },
			"finish": func(t *rapid.T) { finish(t, l, m) },
			"reopen": func(t *rapid.T) {
				if path != "" {
					l = reopen(t, l, path)
				}
			},
			"": func(*rapid.T) {},
		})
		readAll(t, l, m, c)
	})
}

// content is bytes that tell where they stand.
func content(m *model, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		at := len(m.bytes) + i
		p[i] = byte(at) ^ byte(at>>8) ^ byte(at>>16)
	}
	return p
}

func appendSome(t *rapid.T, l *Log, m *model, size *rapid.Generator[int]) {
	s := rapid.SampledFrom([]Stream{Stdout, Stderr}).Draw(t, "stream")
	p := content(m, size.Draw(t, "size"))
	err := l.Append(s, p)
	if m.finished != (err != nil) {
		t.Fatalf("finished %v, append: %v", m.finished, err)
	}
	if !m.finished {
		m.append(s, p)
	}
}

// drops is what costs the most of the file: single bytes of alternating streams.
func drops(t *rapid.T, l *Log, m *model) {
	if m.finished {
		return
	}
	for i := range rapid.IntRange(1, 200).Draw(t, "drops") {
		s, p := Stdout+Stream(i%2), content(m, 1)
		if err := l.Append(s, p); err != nil {
			t.Fatal(err)
		}
		m.append(s, p)
	}
}

func finish(t *rapid.T, l *Log, m *model) {
	if m.finished || rapid.IntRange(0, 5).Draw(t, "really") > 0 {
		return
	}
	m.result = rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "result")
	if err := l.Finish(m.result); err != nil {
		t.Fatal(err)
	}
	m.finished = true
}

func reopen(t *rapid.T, l *Log, path string) *Log {
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func checkSize(t *rapid.T, l *Log, m *model, c Config) {
	total, kept := l.Size()
	if total != Cursor(len(m.bytes)) || kept > c.Head+c.Tail || kept > int64(total) {
		t.Fatalf("size %d, %d kept; %d were appended, head %d and tail %d", total, kept, len(m.bytes), c.Head, c.Tail)
	}
}

func readSome(t *rapid.T, l *Log, m *model, c Config) Batch {
	from := rapid.IntRange(0, len(m.bytes)).Draw(t, "from")
	max := rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 200_000)).Draw(t, "max")
	return readAndCheck(t, l, m, c, from, max)
}

// readAll follows the cursors from the beginning to the end.
func readAll(t *rapid.T, l *Log, m *model, c Config) {
	lost := uint64(0)
	for from := 0; from < len(m.bytes); {
		b := readAndCheck(t, l, m, c, from, 50_000)
		from = int(b.Next)
		lost += b.Lost
	}
	if _, kept := l.Size(); lost != uint64(len(m.bytes))-uint64(kept) {
		t.Fatalf("lost %d, while %d of %d are kept", lost, kept, len(m.bytes))
	}
}

func readAndCheck(t *rapid.T, l *Log, m *model, c Config, from, max int) Batch {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	b, err := l.Read(over, Cursor(from), max)
	if from == len(m.bytes) && !m.finished {
		if err != context.Canceled || int(b.Next) != from {
			t.Fatalf("at the end: %+v, %v", b, err)
		}
		return b
	}
	if err != nil {
		t.Fatal(err)
	}
	if cause := m.compare(b, c, from, max); cause != "" {
		t.Fatalf("read from %d, %d bytes of %d, head %d, tail %d: %s", from, max, len(m.bytes), c.Head, c.Tail, cause)
	}
	return b
}

// compare says what is wrong with a batch.
func (m *model) compare(b Batch, c Config, from, max int) string {
	at := from + int(b.Lost)
	got := 0
	for i, chunk := range b.Chunks {
		end := at + got + len(chunk.Data)
		if end > len(m.bytes) || !bytes.Equal(chunk.Data, m.bytes[at+got:end]) {
			return fmt.Sprintf("chunk %d has other bytes", i)
		}
		for _, s := range m.streams[at+got : end] {
			if s != chunk.Stream {
				return fmt.Sprintf("chunk %d is of another stream", i)
			}
		}
		if len(chunk.Data) == 0 || i > 0 && b.Chunks[i-1].Stream == chunk.Stream {
			return fmt.Sprintf("chunk %d is empty or belongs to the one before", i)
		}
		got += len(chunk.Data)
	}
	end := m.finished && at+got == len(m.bytes)
	switch {
	case got > max || got == 0 && from < len(m.bytes):
		return fmt.Sprintf("%d bytes", got)
	case int(b.Next) != at+got:
		return fmt.Sprintf("next is %d, not %d", b.Next, at+got)
	case b.End != end || end && !bytes.Equal(b.Result, m.result):
		return fmt.Sprintf("end %v, result %q", b.End, b.Result)
	case b.Lost > 0 && from < int(c.Head) && m.averages(24):
		return fmt.Sprintf("%d bytes of the head are lost", b.Lost)
	case b.Lost > 0 && at != len(m.bytes)-int(c.Tail) && m.averages(24):
		return fmt.Sprintf("after a gap of %d comes byte %d", b.Lost, at)
	}
	return ""
}

// averages says whether every run of one stream is long enough that framing does not push bytes out.
func (m *model) averages(n int) bool {
	run := 0
	for i := range m.streams {
		if i > 0 && m.streams[i] != m.streams[i-1] {
			if run < n {
				return false
			}
			run = 0
		}
		run++
	}
	return run >= n || run == len(m.streams)
}
