//go:build unix

// Command saver saves files again and again, in the ways of editors and tools, until it is killed. It also checks whether each such file is
// as it was at some save. It runs in a VM, and beside it for the host's files.
//
//	saver make DIR...           version 0 of the files in each DIR
//	saver save VERSION DIR...   versions from there on; after each sync it prints "synced DIR WAY VERSION" for each file
//	saver check DIR...          prints "DIR WAY VERSION whole", or "cut" or "bad" instead of "whole" and why
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// ways are the ways to save, of which each has a file with its name.
var ways = []struct {
	name string
	save func(file string, version int) error
}{
	{"truncate", func(file string, version int) error { return os.WriteFile(file, content("truncate", version), 0o644) }},
	{"rename", func(file string, version int) error {
		if err := os.WriteFile(file+".new", content("rename", version), 0o644); err != nil {
			return err
		}
		return os.Rename(file+".new", file)
	}},
	{"append", func(file string, version int) error {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(line(version, 0))
		return errors.Join(err, f.Close())
	}},
	{"mmap", saveMapped},
	{"sed", func(file string, version int) error {
		return exec.Command("sed", "-i", fmt.Sprintf("s/^v........ /v%08d /", version), file).Run()
	}},
	{"checkout", func(file string, version int) error {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(content("checkout", version))
		return errors.Join(err, f.Close())
	}},
}

// mendAppended removes what saves that were cut short have left in a file, and all after it.
func mendAppended(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	whole := 0
	for whole+lineSize <= len(b) && b[whole] != 0 {
		whole += lineSize
	}
	return os.Truncate(file, int64(whole))
}

// saveMapped changes the versions in a file that is mapped.
func saveMapped(file string, version int) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	want := content("mmap", version)
	m, err := syscall.Mmap(int(f.Fd()), 0, len(want), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(m, want)
	return syscall.Munmap(m)
}

// lineSize is of each line. A page has a whole number of them, so that what is written by pages is written by lines.
const lineSize = 64

// blockSize is of the guest's file system.
const blockSize = 4096

func line(version, number int) []byte {
	text := fmt.Appendf(nil, "v%08d %06d ", version, number)
	return append(text, append(bytes.Repeat([]byte{'x'}, lineSize-len(text)-1), '\n')...)
}

// content is what a file of a way has at a version, of some KB.
func content(way string, version int) (b []byte) {
	lines := 256
	if way == "truncate" || way == "rename" || way == "checkout" {
		lines = 16 + version*37%500
	}
	for i := range lines {
		b = append(b, line(version, i)...)
	}
	return b
}

// check says which version a file has. cut is why it is a part of one, as a save leaves it that is cut short; err why it is none.
func check(way string, b []byte) (version int, cut string, err error) {
	if len(b) == 0 {
		return 0, "empty", nil
	}
	if len(b) < lineSize || b[0] != 'v' {
		return 0, "", fmt.Errorf("%d bytes that begin with %.20q", len(b), b)
	}
	if version, err = strconv.Atoi(string(b[1:9])); err != nil {
		return 0, "", err
	}
	switch way {
	case "append":
		return checkLines(b, true)
	case "mmap":
		if len(b) != 256*lineSize {
			return version, "", fmt.Errorf("%d bytes", len(b))
		}
		return checkLines(b, false)
	}
	switch want := content(way, version); {
	case bytes.Equal(b, want):
		return version, "", nil
	case bytes.HasPrefix(want, b):
		return version, fmt.Sprintf("%d bytes of %d", len(b), len(want)), nil
	}
	return version, "", fmt.Errorf("%d bytes that are not of version %d", len(b), version)
}

// checkLines is for files whose lines are saved one by one: each has a version, the last of which counts if they grow and the least else.
func checkLines(b []byte, grow bool) (version int, cut string, err error) {
	for i := 0; i < len(b); i += lineSize {
		// A block that was there already is written later than the file's size, and than the blocks that came after it.
		if end := min(i/blockSize*blockSize+blockSize, len(b)); grow && len(bytes.Trim(b[i:end], "\x00")) == 0 {
			return version, fmt.Sprintf("%d bytes of zeros, and %d after them", end-i, len(b)-end), nil
		}
		one := b[i:min(i+lineSize, len(b))]
		if len(one) < lineSize {
			return version, fmt.Sprintf("a line has %d bytes", len(one)), nil
		}
		v, err := strconv.Atoi(string(one[1:9]))
		number := i / lineSize
		if grow {
			number = 0
		}
		if err != nil || !bytes.Equal(one, line(v, number)) || grow && v < version {
			return version, "", fmt.Errorf("line %d is %q", i/lineSize, one)
		}
		if grow || i == 0 || v < version {
			version = v
		}
	}
	return version, "", nil
}

func run(args []string) error {
	switch args[0] {
	case "make":
		for _, dir := range args[1:] {
			for _, way := range ways {
				b := content(way.name, 0)
				if way.name == "append" {
					b = line(0, 0)
				}
				if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, way.name), b, 0o644)); err != nil {
					return err
				}
			}
		}
	case "check":
		for _, dir := range args[1:] {
			for _, way := range ways {
				b, err := os.ReadFile(filepath.Join(dir, way.name))
				if errors.Is(err, fs.ErrNotExist) && way.name == "checkout" {
					fmt.Println(dir, way.name, 0, "cut gone") // between the removal and the new one
					continue
				}
				if err != nil {
					return err
				}
				switch version, cut, err := check(way.name, b); {
				case err != nil:
					fmt.Println(dir, way.name, version, "bad", err)
				case cut != "":
					fmt.Println(dir, way.name, version, "cut", cut)
				default:
					fmt.Println(dir, way.name, version, "whole")
				}
			}
		}
	case "save":
		version, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		for _, dir := range args[2:] {
			if err := mendAppended(filepath.Join(dir, "append")); err != nil {
				return err
			}
		}
		for ; ; version++ {
			if err := round(version, args[2:]); err != nil {
				return err
			}
		}
	}
	return nil
}

// round saves all files once. Now and then it syncs all, and in between only another file, which makes the file system commit what it has.
func round(version int, dirs []string) error {
	for _, dir := range dirs {
		for i, way := range ways {
			if err := way.save(filepath.Join(dir, way.name), version); err != nil {
				return fmt.Errorf("%s in %s: %w", way.name, dir, err)
			}
			if i == version%len(ways) {
				if err := syncOther(filepath.Join(dir, "other")); err != nil {
					return err
				}
			}
		}
	}
	if version%5 != 0 {
		return nil
	}
	syscall.Sync()
	var b bytes.Buffer
	for _, dir := range dirs {
		for _, way := range ways {
			f, err := os.Open(filepath.Join(dir, way.name)) // sync(2) does not wait for what is mapped of a FUSE file
			if err == nil {
				err = errors.Join(f.Sync(), f.Close())
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(&b, "synced", dir, way.name, version)
		}
	}
	_, err := os.Stdout.Write(b.Bytes())
	return err
}

func syncOther(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString("x")
	return errors.Join(err, f.Sync(), f.Close())
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "saver: want make, save or check, and directories")
		os.Exit(2)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "saver:", err)
		os.Exit(1)
	}
}
