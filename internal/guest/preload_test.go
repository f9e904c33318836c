//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// programNaming returns the beginning of an ELF program that names a loader.
func programNaming(loader string) []byte {
	const at = elfHeaderSize
	b := make([]byte, at+2*elfSegmentSize)
	copy(b, "\x7fELF\x02\x01")
	binary.LittleEndian.PutUint64(b[elfHeadersAt:], at)
	binary.LittleEndian.PutUint16(b[elfHeadersNumber:], 2)
	second := b[at+elfSegmentSize:]
	binary.LittleEndian.PutUint32(second, elfInterpreter)
	binary.LittleEndian.PutUint64(second[8:], uint64(len(b)))
	binary.LittleEndian.PutUint64(second[32:], uint64(len(loader)))
	return append(b, loader...)
}

// damaged returns programNaming with 8 bytes overwritten.
func damaged(at int, value uint64) []byte {
	b := programNaming("/lib/ld.so\x00")
	binary.LittleEndian.PutUint64(b[at:], value)
	return b
}

func TestLoaderOf(t *testing.T) {
	const second = elfHeaderSize + elfSegmentSize
	for _, c := range []struct {
		name    string
		program []byte
		want    string
	}{
		{"dynamic", programNaming("/lib/ld.so\x00"), "/lib/ld.so"},
		{"script", []byte("#!/bin/sh\n" + strings.Repeat(" ", 100)), ""},
		{"empty", nil, ""},
		{"ends in its headers", programNaming("")[:100], ""},
		{"name without an end", programNaming("/lib/ld.so"), ""},
		{"name beyond the file", damaged(second+8, 1<<40), ""},
		{"name before the file", damaged(second+8, 1<<63), ""},
		{"endless name", damaged(second+32, 1<<63), "/lib/ld.so"},
		{"headers beyond the file", damaged(elfHeadersAt, 1<<62), ""},
		{"headers before the file", damaged(elfHeadersAt, 1<<63), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := loaderOf(readFrom(c.program)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// readFrom returns pread of a file with these bytes.
func readFrom(content []byte) func([]byte, int64) (int, error) {
	return func(b []byte, at int64) (int, error) {
		if at < 0 {
			return -1, syscall.EINVAL
		}
		n, err := bytes.NewReader(content).ReadAt(b, at)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return n, err
	}
}

func FuzzLoaderOf(f *testing.F) {
	f.Add(programNaming("/lib/ld.so\x00"))
	f.Add(damaged(elfHeadersAt, 1<<63))
	f.Fuzz(func(t *testing.T, program []byte) {
		if loader, _ := loaderOf(readFrom(program)); strings.Contains(loader, "\x00") {
			t.Errorf("loader %q", loader)
		}
	})
}

// An image may have any file in the place of its shell.
func TestReadLargeTakesProgramsOnly(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, empty, dir, filepath.Join(dir, "missing"), "/dev/null"} {
		if loader, err := readLarge(path); err == nil {
			t.Errorf("%s was read, and names %q", path, loader)
		}
	}
}
