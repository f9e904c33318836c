package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// readWhole is all that a log gives of both streams.
func readWhole(l *Log) (all []byte, result []byte, err error) {
	for from := Cursor(0); ; {
		b, err := l.Read(context.Background(), from, 0)
		if err != nil {
			return all, nil, err
		}
		for _, c := range b.Chunks {
			all = append(all, c.Data...)
		}
		if from = b.Next; b.End {
			return all, b.Result, nil
		}
	}
}

// TestEveryDamageIsSeen flips a bit in each byte of a finished journal in turn, while it is open, as a job's is that a daemon has, and before
// it is opened: what is read is right, or it is an error. The last record is one of few large ones, one of many small ones that grew, or the
// first of its region.
func TestEveryDamageIsSeen(t *testing.T) {
	for _, shape := range []struct{ total, each int }{{150, 150}, {150, 10}, {150, 1}, {200, 200}, {230, 100}, {260, 20}} {
		t.Run(fmt.Sprint(shape), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			l := create(t, path, Config{Head: 200})
			fill(t, l, shape.total, shape.each, []byte("result"))
			defer l.Close()
			sound, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want := numbers(0, shape.total)
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			damages := 0
			for at, b := range sound {
				if b == 0 && at%97 != 0 { // between the parts there are pages of zeros
					continue
				}
				damages++
				if _, err := file.WriteAt([]byte{b ^ 1<<(at%8)}, int64(at)); err != nil {
					t.Fatal(err)
				}
				check := func(how string, l *Log, err error) {
					var all, result []byte
					if err == nil {
						all, result, err = readWhole(l)
					}
					var corrupt *CorruptError
					switch {
					case errors.As(err, &corrupt):
					case err != nil || !bytes.Equal(all, want) || string(result) != "result":
						t.Errorf("byte %d, %s: %q with %q (%v) is taken for the output", at, how, all, result, err)
					}
				}
				check("while it is open", l, nil)
				again, err := OpenReadOnly(path)
				check("opened afterwards", again, err)
				if again != nil {
					again.Close()
				}
				if _, err := file.WriteAt([]byte{b}, int64(at)); err != nil {
					t.Fatal(err)
				}
			}
			if damages < 150 {
				t.Errorf("only %d damages were tried", damages)
			}
		})
	}
}
