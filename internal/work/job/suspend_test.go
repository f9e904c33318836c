package job

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/storage/journal"
)

// program is a Process that ends when end or broken gets something.
type program struct {
	end    chan End
	broken chan error
}

func newProgram() *program { return &program{make(chan End, 1), make(chan error, 1)} }

func (p *program) Wait(context.Context) (*End, error) {
	select {
	case end := <-p.end:
		return &end, nil
	case err := <-p.broken:
		return nil, err
	}
}
func (p *program) Signal(context.Context, int) error            { return nil }
func (p *program) Kill(context.Context) error                   { p.end <- End{Code: 137, Signal: 9}; return nil }
func (p *program) Resize(context.Context, uint16, uint16) error { return nil }

// TestSuspend: a durable job that the end of a saved VM interrupts continues in another table, in the same journal; one that has ended has
// ended; and one that is not continued is as one whose process was killed.
func TestSuspend(t *testing.T) {
	dir := t.TempDir()
	c := Config{Logger: slog.New(slog.DiscardHandler), Now: time.Now}
	start := func(table *Table, id string) (p *program, out io.Writer) {
		p = newProgram()
		_, err := table.Start(Options{ID: id, Durable: true, Background: true, Dir: filepath.Join(dir, id), Keep: journal.Config{Head: 1 << 16, Tail: 1 << 16}},
			func(s Streams) (Process, error) { out = s.Stdout; return p, nil })
		if err != nil {
			t.Fatal(err)
		}
		return p, out
	}
	write := func(w io.Writer, text string) {
		t.Helper()
		if _, err := io.WriteString(w, text); err != nil {
			t.Error(err)
		}
	}
	one := NewTable(c)
	stays, out := start(one, "stays")
	ends, _ := start(one, "ends")
	lost, _ := start(one, "lost")
	write(out, "before ")
	one.Suspend()
	ends.end <- End{Code: 3}
	stays.broken <- errors.New("the VM is stopped")
	lost.broken <- errors.New("the VM is stopped")
	one.Wait(errors.New("over"))
	one.Close()

	two := NewTable(c)
	unseen := errors.New("not seen")
	two.Load(dir, unseen, "stays", "ends")
	if j, err := two.Find("lost"); err != nil || !errors.Is(j.err, unseen) {
		t.Errorf("lost: %+v, %v", j, err)
	}
	find := func(p *program) func(journal.Cursor, Streams) (Process, error) {
		return func(at journal.Cursor, s Streams) (Process, error) {
			if at != journal.Cursor(len("before ")) {
				t.Errorf("%d bytes written", at)
			}
			write(s.Stdout, "after")
			return p, nil
		}
	}
	gone := errors.New("gone")
	if _, err := two.Continue("stays", true, func(journal.Cursor, Streams) (Process, error) { return nil, gone }); !errors.Is(err, gone) || two.Count() != 0 {
		t.Errorf("%v, %d run", err, two.Count())
	}
	p := newProgram()
	j, err := two.Continue("stays", true, find(p))
	if active, _ := two.Used(); err != nil || two.Count() != 1 || active != 0 {
		t.Fatalf("%v, %d run, %d are use", err, two.Count(), active)
	}
	if j, err := two.Continue("ends", true, find(nil)); err != nil || j.Info().Exit.Code != 3 {
		t.Errorf("one that has ended: %+v, %v", j, err)
	}
	if err := j.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if end, err := j.Wait(t.Context()); err != nil || end.Signal != 9 {
		t.Errorf("%+v, %v", end, err)
	}
	if o, err := j.Output(t.Context(), 0, 100); err != nil || string(o.Chunks[0].Data) != "before after" {
		t.Errorf("%+v, %v", o, err)
	}
	two.Wait(errors.New("over"))
	two.Close()
}
