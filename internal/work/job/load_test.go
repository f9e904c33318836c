package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/storage/journal"
)

// writeJob writes the files of a job that has printed ten lines and ended.
func writeJob(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(record{ID: filepath.Base(dir), Args: []string{"make"}, Started: time.Unix(1000, 0), Durable: true})
	if err == nil {
		err = os.WriteFile(RecordPath(dir), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	log, err := journal.Create(JournalPath(dir), journal.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		line := bytes.Repeat([]byte{'0' + byte(i)}, 70)
		if err := log.Append(journal.Stdout+journal.Stream(i%2), append(line, '\n')); err != nil { // streams that alternate keep records apart
			t.Fatal(err)
		}
	}
	end, _ := json.Marshal(End{Code: 3})
	if err := errors.Join(log.Finish(end), log.Close()); err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, path, at string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte(at))] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedJobs: jobs whose files are damaged stay, are listed as damaged, and print what precedes the damage. One whose start was interrupted
// before it ran is removed.
func TestDamagedJobs(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(dir string)
		lines  int // of output; -1: the job is not listed
		sound  bool
	}{
		{"nothing", func(string) {}, 10, true},
		{"record emptied", func(dir string) { _ = os.Truncate(RecordPath(dir), 0) }, 10, false},
		{"record gone", func(dir string) { _ = os.Remove(RecordPath(dir)) }, 10, false},
		{"record of another job", func(dir string) { flip(t, RecordPath(dir), "0a0b0c0d") }, 10, false},
		{"journal in its middle", func(dir string) { flip(t, JournalPath(dir), "5555") }, 5, false},
		{"first record", func(dir string) { flip(t, JournalPath(dir), "0000") }, 0, false},
		{"journal emptied", func(dir string) { _ = os.Truncate(JournalPath(dir), 0) }, 0, false},
		{"journal gone", func(dir string) { _ = os.Remove(JournalPath(dir)) }, 0, false},
		{"both", func(dir string) {
			_ = os.Truncate(RecordPath(dir), 0)
			flip(t, JournalPath(dir), "3333")
		}, 3, false},
		{"all gone", func(dir string) { _ = errors.Join(os.Remove(RecordPath(dir)), os.Remove(JournalPath(dir))) }, -1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "0a0b0c0d")
			writeJob(t, dir)
			tt.damage(dir)
			for _, load := range []func(t *Table){
				func(t *Table) { t.Peek(parent, ErrInterrupted) },
				func(t *Table) { t.Load(parent, ErrInterrupted) },
				func(t *Table) { t.Load(parent, ErrInterrupted, "0a0b0c0d") }, // again
			} {
				table := NewTable(Config{Logger: slog.New(slog.DiscardHandler), Now: time.Now, MaxJobs: 10, MaxEnded: 10})
				load(table)
				list := table.List()
				if tt.lines < 0 {
					if len(list) != 0 {
						t.Errorf("listed: %+v", list[0].Info())
					}
					continue
				}
				if len(list) != 1 {
					t.Fatalf("%d jobs", len(list))
				}
				j := list[0]
				if i := j.Info(); i.ID != "0a0b0c0d" || i.Started.IsZero() || (i.Exit != nil) != tt.sound || !tt.sound && !strings.HasPrefix(i.Error, ErrDamaged.Error()) {
					t.Errorf("%+v", i)
				}
				lines := 0
				for next := journal.Cursor(0); ; {
					o, err := j.Output(t.Context(), next, 0)
					if err != nil {
						t.Fatal(err)
					}
					for _, c := range o.Chunks {
						lines += bytes.Count(c.Data, []byte("\n"))
					}
					if o.End != nil {
						if (o.Err == nil) != tt.sound {
							t.Errorf("it has ended with %v", o.Err)
						}
						break
					}
					next = o.Next
				}
				if lines != tt.lines {
					t.Errorf("%d lines of output", lines)
				}
				if _, err := table.Continue("0a0b0c0d", false, nil); errors.Is(err, ErrDamaged) == tt.sound {
					t.Errorf("continued: %v", err)
				}
				for _, j := range table.List() {
					_ = j.Close()
				}
			}
			if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) != (tt.lines < 0) {
				t.Errorf("its files: %v", err)
			}
			if tt.lines < 0 {
				return
			}
			table := NewTable(Config{Logger: slog.New(slog.DiscardHandler), Now: time.Now})
			table.Load(parent, ErrInterrupted)
			if err := table.List()[0].Remove(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after its removal: %v", err)
			}
		})
	}
}
