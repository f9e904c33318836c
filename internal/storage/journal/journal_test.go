package journal

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) {
	if os.Getenv(writerVariable) != "" {
		writeForever()
	}
	leaktest.Main(m)
}

func create(t testing.TB, path string, c Config) *Log {
	t.Helper()
	l, err := Create(path, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func add(t testing.TB, l *Log, s Stream, text string) {
	t.Helper()
	if err := l.Append(s, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, l *Log, from Cursor, max int) Batch {
	t.Helper()
	b, err := l.Read(t.Context(), from, max)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRead(t *testing.T) {
	for _, path := range []string{"", filepath.Join(t.TempDir(), "journal")} {
		l := create(t, path, Config{Head: 10, Tail: 10})
		add(t, l, Stdout, "01234")
		add(t, l, Stderr, "567")
		add(t, l, Stdout, "89abcdefghij")
		add(t, l, Stderr, "klmnopqrst")
		add(t, l, Stdout, "uvwxyz")
		chunk := func(s Stream, text string) Chunk { return Chunk{Stream: s, Data: []byte(text)} }
		for _, test := range []struct {
			name string
			from Cursor
			max  int
			want Batch
		}{
			{"the head", 0, 100, Batch{Chunks: []Chunk{chunk(Stdout, "01234"), chunk(Stderr, "567"), chunk(Stdout, "89")}, Next: 10}},
			{"a part of it", 3, 4, Batch{Chunks: []Chunk{chunk(Stdout, "34"), chunk(Stderr, "56")}, Next: 7}},
			{"its last byte", 9, 0, Batch{Chunks: []Chunk{chunk(Stdout, "9")}, Next: 10}},
			{"the gap", 10, 100, Batch{Chunks: []Chunk{chunk(Stderr, "qrst"), chunk(Stdout, "uvwxyz")}, Next: 36, Lost: 16}},
			{"inside the gap", 25, 3, Batch{Chunks: []Chunk{chunk(Stderr, "qrs")}, Next: 29, Lost: 1}},
			{"behind the gap", 26, 1, Batch{Chunks: []Chunk{chunk(Stderr, "q")}, Next: 27}},
			{"the last byte", 35, 1, Batch{Chunks: []Chunk{chunk(Stdout, "z")}, Next: 36}},
		} {
			t.Run(test.name, func(t *testing.T) {
				if diff := cmp.Diff(test.want, read(t, l, test.from, test.max)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
		if total, kept := l.Size(); total != 36 || kept != 20 {
			t.Errorf("size %d, kept %d", total, kept)
		}
		if _, err := l.Read(t.Context(), 37, 1); !errors.Is(err, ErrCursor) {
			t.Errorf("behind the end: %v", err)
		}
	}
}

func TestFinish(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	l := create(t, path, Config{})
	add(t, l, Stdout, "bye")
	if err := l.Finish(make([]byte, MaxResult+1)); err == nil {
		t.Error("a result that is too long was taken")
	}
	result := []byte(strings.Repeat("r", MaxResult))
	if err := l.Finish(result); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(Stdout, []byte("more")); !errors.Is(err, ErrFinished) {
		t.Errorf("append to a finished journal: %v", err)
	}
	if err := l.Finish(nil); !errors.Is(err, ErrFinished) {
		t.Errorf("finish twice: %v", err)
	}
	l.Close()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	last := Batch{Chunks: []Chunk{{Stdout, []byte("bye")}}, Next: 3, End: true, Result: result}
	if diff := cmp.Diff(last, read(t, l, 0, 0)); diff != "" {
		t.Errorf("the last bytes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Batch{Next: 3, End: true, Result: result}, read(t, l, 3, 0)); diff != "" {
		t.Errorf("the end (-want +got):\n%s", diff)
	}
	if b := read(t, l, 0, 2); b.End || b.Result != nil {
		t.Errorf("the end is reported too early: %+v", b)
	}
}

// TestWaiting needs no polling: in the bubble time passes only when everybody waits.
func TestWaiting(t *testing.T) {
	tests := []struct {
		name string
		act  func(l *Log, cancel func()) error
		want Batch
		err  error
	}{
		{"a byte", func(l *Log, _ func()) error { return l.Append(Stderr, []byte("x")) },
			Batch{Chunks: []Chunk{{Stderr, []byte("x")}}, Next: 4}, nil},
		{"the end", func(l *Log, _ func()) error { return l.Finish([]byte("r")) }, Batch{Next: 3, End: true, Result: []byte("r")}, nil},
		{"the context", func(_ *Log, cancel func()) error { cancel(); return nil }, Batch{Next: 3}, context.Canceled},
		{"closing", func(l *Log, _ func()) error { return l.Close() }, Batch{Next: 3}, ErrClosed},
		{"removing", func(l *Log, _ func()) error { return l.Remove() }, Batch{Next: 3}, ErrClosed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := create(t, "", Config{})
				add(t, l, Stdout, "abc")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				start := time.Now()
				go func() {
					time.Sleep(time.Hour)
					if err := test.act(l, cancel); err != nil {
						t.Error(err)
					}
				}()
				got, err := l.Read(ctx, 3, 100)
				if diff := cmp.Diff(test.want, got); diff != "" || !errors.Is(err, test.err) {
					t.Errorf("error %v, (-want +got):\n%s", err, diff)
				}
				if waited := time.Since(start); waited != time.Hour {
					t.Errorf("returned after %v", waited)
				}
			})
		})
	}
}

func TestWhatIsThereIsReadWithoutWaiting(t *testing.T) {
	l := create(t, "", Config{})
	add(t, l, Stdout, "abc")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b, err := l.Read(ctx, 0, 10); err != nil || b.Next != 3 {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	for _, c := range []Config{{Head: -1}, {Tail: -1}, {Head: maxKept + 1}, {Tail: maxKept + 1}, {Random: strings.NewReader("short")}} {
		if l, err := Create(path, c); err == nil {
			l.Remove()
			t.Errorf("%+v was accepted", c)
		}
	}
	l := create(t, path, Config{})
	if _, err := Create(path, Config{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create twice: %v", err)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	for _, s := range []Stream{0, 3} {
		if err := l.Append(s, []byte("x")); err == nil {
			t.Errorf("stream %d was accepted", s)
		}
	}
	l.Close()
	if err := l.Append(Stdout, []byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("append to a closed journal: %v", err)
	}
	if err := l.Finish(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("finish a closed journal: %v", err)
	}
	if err := l.Remove(); err != nil {
		t.Errorf("remove a closed journal: %v", err)
	}
	if _, err := Open(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open a removed journal: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a directory was opened")
	}
}

// TestManyReaders has readers at all paces beside two writers. Each must see a run of numbers for each writer, with gaps
// only where Lost says so.
func TestManyReaders(t *testing.T) {
	for _, path := range []string{"", filepath.Join(t.TempDir(), "journal")} {
		l := create(t, path, Config{Head: 10_000, Tail: 100_000})
		var writers, readers sync.WaitGroup
		const lines = 4000
		for _, s := range []Stream{Stdout, Stderr} {
			writers.Go(func() {
				for i := range lines {
					line := []byte(strings.Repeat(string(rune('a'+i%26)), 1+i%150))
					if err := l.Append(s, append(line, '\n')); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for pace := range 6 {
			readers.Go(func() { follow(t, l, pace) })
		}
		writers.Wait()
		if err := l.Finish(nil); err != nil {
			t.Error(err)
		}
		readers.Wait()
	}
}

// follow reads to the end and checks that lines are whole: of one letter each, apart from those that a gap cuts.
func follow(t *testing.T, l *Log, pace int) {
	var line [3]byte // the letter of each stream's unfinished line; 0: any
	var at Cursor
	for {
		b, err := l.Read(t.Context(), at, 1<<(4+3*pace))
		if err != nil {
			t.Errorf("pace %d: %v", pace, err)
			return
		}
		got := Cursor(b.Lost)
		if b.Lost > 0 {
			line = [3]byte{}
		}
		for _, c := range b.Chunks {
			got += Cursor(len(c.Data))
			for _, x := range c.Data {
				if letter := line[c.Stream]; letter != 0 && x != '\n' && letter != x {
					t.Errorf("pace %d: %q in a line of %q", pace, x, letter)
					return
				}
				line[c.Stream] = x
				if x == '\n' {
					line[c.Stream] = 0
				}
			}
		}
		if at += got; at != b.Next {
			t.Errorf("pace %d: next is %d, not %d", pace, b.Next, at)
			return
		}
		if b.End {
			return
		}
	}
}

// TestCloseWhileInUse closes under readers and writers: none hangs, none sees anything but ErrClosed.
func TestCloseWhileInUse(t *testing.T) {
	for range 20 {
		l := create(t, filepath.Join(t.TempDir(), "journal"), Config{Head: 1000, Tail: 20_000})
		var group sync.WaitGroup
		started := make(chan struct{}, 4)
		for range 2 {
			group.Go(func() {
				var err error
				for i := 0; err == nil; i++ {
					if err = l.Append(Stdout, make([]byte, 3000)); i == 20 {
						started <- struct{}{}
					}
				}
				if !errors.Is(err, ErrClosed) {
					t.Errorf("append: %v", err)
				}
			})
			group.Go(func() {
				var err error
				var b Batch
				for i := 0; err == nil; i++ {
					if b, err = l.Read(context.Background(), b.Next, 5000); i == 5 {
						started <- struct{}{}
					}
				}
				if !errors.Is(err, ErrClosed) {
					t.Errorf("read: %v", err)
				}
			})
		}
		for range 4 {
			<-started
		}
		if err := l.Remove(); err != nil {
			t.Error(err)
		}
		group.Wait()
	}
}

func TestOpenReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	l, err := Create(path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(Stdout, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if l, err = OpenReadOnly(path); err != nil {
		t.Fatal(err)
	}
	if b, err := l.Read(context.Background(), 0, 100); err != nil || len(b.Chunks) != 1 || string(b.Chunks[0].Data) != "hello" {
		t.Errorf("%+v, %v", b, err)
	}
	if err := l.Append(Stdout, []byte("more")); err == nil {
		t.Error("appended")
	}
	if err := l.Finish([]byte("end")); err == nil {
		t.Error("finished")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the file has changed: %v", err)
	}
}
