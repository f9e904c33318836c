package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writerVariable names the journal that this test binary, started again, writes to until it is killed.
const writerVariable = "AGENTVM_TEST_JOURNAL_WRITER"

// numbers is a stream that says of each of its bytes which one it has to be.
func numbers(from, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		at := from + i
		p[i] = byte(at*2654435761>>13) ^ byte(at)
	}
	return p
}

// writeForever is the child: it appends runs of all lengths and after each reports how far it is.
func writeForever() {
	path := os.Getenv(writerVariable)
	l, err := Create(path, Config{Head: 200_000, Tail: 500_000})
	if errors.Is(err, os.ErrExist) {
		l, err = Open(path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	total, _ := l.Size()
	for at, i := int(total), 0; ; i++ {
		n := []int{1, 7, 80, 4096, 65536, 150_000}[rand.IntN(6)]
		if err := l.Append(Stdout+Stream(i%3/2), numbers(at, n)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		at += n
		binary.Write(os.Stdout, binary.LittleEndian, uint64(at))
	}
}

// TestKill kills a writer at random moments, many times over the same journal. Whatever Append had returned for is there.
func TestKill(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "journal")
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		acknowledged := killOne(t, executable, path)
		l, err := Open(path)
		if errors.Is(err, os.ErrNotExist) || emptyJournal(err) && acknowledged == 0 {
			os.Remove(path)
			continue
		}
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		total, _ := l.Size()
		if uint64(total) < acknowledged {
			t.Errorf("round %d: %d bytes of %d that were appended", round, total, acknowledged)
		}
		checkNumbers(t, l, total)
		l.Close()
	}
}

// emptyJournal: the child was killed between making the file and writing its header.
func emptyJournal(err error) bool {
	var corrupt *CorruptError
	return errors.As(err, &corrupt) && strings.Contains(corrupt.Cause, "it is empty")
}

// killOne runs a writer for a random time and returns how many bytes it has reported.
func killOne(t *testing.T, executable, path string) (acknowledged uint64) {
	child := exec.Command(executable)
	child.Env = append(os.Environ(), writerVariable+"="+path)
	var complaints strings.Builder
	child.Stderr = &complaints
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Duration(rand.IntN(60))*time.Millisecond, func() { child.Process.Kill() })
	defer timer.Stop()
	var n [8]byte
	for {
		if _, err := io.ReadFull(out, n[:]); err != nil {
			break
		}
		acknowledged = binary.LittleEndian.Uint64(n[:])
	}
	child.Wait()
	if complaints.Len() > 0 {
		t.Fatalf("the writer: %s", complaints.String())
	}
	return acknowledged
}

func checkNumbers(t *testing.T, l *Log, total Cursor) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for at := Cursor(0); at < total; {
		b, err := l.Read(over, at, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		at += Cursor(b.Lost)
		for _, c := range b.Chunks {
			if string(c.Data) != string(numbers(int(at), len(c.Data))) {
				t.Fatalf("the %d bytes from %d are others", len(c.Data), at)
			}
			at += Cursor(len(c.Data))
		}
		if at != b.Next {
			t.Fatalf("next is %d, not %d", b.Next, at)
		}
	}
}
