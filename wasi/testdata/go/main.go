// Command main exercises package os on WASI. It prints what failed and exits with 1, or with 9 when nothing did.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func check(what string, ok bool, err error) {
	if !ok {
		fmt.Println("failed:", what, err)
		os.Exit(1)
	}
}

func main() {
	dir := os.Args[1]
	files(dir)
	tree(dir)
	escapes(dir)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	check("stdin", line == "input\n" && err == nil, err)
	b := make([]byte, 1<<20)
	_, err = io.ReadFull(rand.Reader, b)
	check("random", err == nil && !bytes.Equal(b[:1000], make([]byte, 1000)), err)
	timers()
	fmt.Fprintln(os.Stderr, "done", os.Getenv("KEY"))
	os.Exit(9)
}

func files(dir string) {
	path := filepath.Join(dir, "file")
	err := os.WriteFile(path, bytes.Repeat([]byte("0123456789"), 100_000), 0o600)
	check("write", err == nil, err)
	got, err := os.ReadFile(path)
	check("read", len(got) == 1_000_000 && err == nil, err)
	when := time.Unix(1234, 5678)
	err = os.Chtimes(path, when, when)
	check("chtimes", err == nil, err)
	info, err := os.Stat(path)
	check("stat", err == nil && info.ModTime().Equal(when) && info.Size() == 1_000_000, err)
	err = os.Truncate(path, 10)
	check("truncate", err == nil, err)
	err = os.Symlink("file", filepath.Join(dir, "link"))
	check("symlink", err == nil, err)
	long := strings.Repeat("x", 200)
	err = os.Symlink(long, filepath.Join(dir, "long"))
	check("symlink", err == nil, err)
	target, err := os.Readlink(filepath.Join(dir, "long"))
	check("readlink", err == nil && target == long, err)
	got, err = os.ReadFile(filepath.Join(dir, "link"))
	check("read link", string(got) == "0123456789", err)
	err = os.Rename(path, filepath.Join(dir, "moved"))
	check("rename", err == nil, err)
	_, err = os.ReadFile(filepath.Join(dir, "link"))
	check("dangling", errors.Is(err, fs.ErrNotExist), err)
}

func tree(dir string) {
	err := os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o700)
	check("mkdirall", err == nil, err)
	for i := range 300 {
		err := os.WriteFile(filepath.Join(dir, "a/b", fmt.Sprint("f", i)), nil, 0o600)
		check("write", err == nil, err)
	}
	count := 0
	err = filepath.WalkDir(filepath.Join(dir, "a"), func(_ string, _ fs.DirEntry, err error) error { count++; return err })
	check("walk", count == 303 && err == nil, err)
	err = os.RemoveAll(filepath.Join(dir, "a"))
	check("removeall", err == nil, err)
	_, err = os.Stat(filepath.Join(dir, "a"))
	check("removed", errors.Is(err, fs.ErrNotExist), err)
}

func escapes(dir string) {
	err := os.Symlink("../../../../etc/passwd", filepath.Join(dir, "out"))
	check("symlink", err == nil, err)
	_, err = os.ReadFile(filepath.Join(dir, "out"))
	check("link outside", errors.Is(err, fs.ErrPermission), err)
}

func timers() {
	start := time.Now()
	woke := make(chan time.Duration)
	for i := range 3 {
		go func() {
			time.Sleep(time.Duration(i+1) * 10 * time.Millisecond)
			woke <- time.Since(start)
		}()
	}
	for i := range 3 {
		d := <-woke
		check("sleep", d >= time.Duration(i+1)*10*time.Millisecond && d < 5*time.Second, nil)
	}
}
