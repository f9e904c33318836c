// Package private makes and checks the files and folders that only the user of this process may change: the store, keys, tokens,
// files to execute, and the configuration of VMs. The rule is OpenSSH's for its own files:
//
//   - a folder or file belongs to this user, or to root, and neither a group nor others may write to it; a secret they may not read
//     either;
//   - the same holds for every folder on the way to it, and for every link on the way, so that no other user can put another file in
//     its place. A folder on the way may be writable for all users if it is sticky (/tmp), where only the owner of an entry can
//     rename it, and writable for the user's own group, if the group is the user's alone (see ownGroup).
//
// The way is checked from the root down. Other users cannot change a folder that was checked, so the name still leads to the same
// file afterwards. Files are checked after they are opened.
//
// On Windows nothing is checked: permissions are access lists there, and those of a profile's folders let in the user,
// administrators and the system only. A store elsewhere is as private as its folder.
package private

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrNotPrivate is wrapped by errors about files and folders that others may change, or read.
var ErrNotPrivate = errors.New("not private")

// problem is an ErrNotPrivate with a text of its own.
type problem string

func (p problem) Error() string        { return string(p) }
func (p problem) Is(target error) bool { return target == ErrNotPrivate }

// MakeFolder makes a folder with mode 0700 if it is missing, also those on the way, and checks it. In a folder of another user it
// makes nothing.
func MakeFolder(folder string) error {
	if err := checkWay(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	return CheckFolder(folder)
}

// CheckFolder checks that a folder is this user's alone.
func CheckFolder(folder string) error {
	if err := checkWay(folder); err != nil {
		return err
	}
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "open", Path: folder, Err: syscall.ENOTDIR}
	}
	return nil
}

// Open opens a regular file for reading that is this user's, and that others may not write to. It waits for nothing, and
// follows no link at the name itself. The folder is the caller's to check.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := checkFile(f)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// CheckFile checks an open file as Open does.
func CheckFile(f *os.File) error {
	_, err := checkFile(f)
	return err
}

// CheckSecret checks an open file as ReadSecret does.
func CheckSecret(f *os.File) error {
	info, err := checkFile(f)
	if err == nil {
		err = checkSecret(f.Name(), info)
	}
	return err
}

func checkFile(f *os.File) (fs.FileInfo, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file (%v)", f.Name(), info.Mode().Type())
	}
	if err == nil {
		err = checkOpen(f.Name(), info)
	}
	return info, err
}

// ReadFile reads a whole file that Open accepts, of at most limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, info, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, info, limit)
}

// ReadSecret is ReadFile for files that others may not read either: keys and tokens.
func ReadSecret(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if err := checkSecret(path, info); err != nil {
		return nil, nil, err
	}
	b, err := readAll(f, info, limit)
	return b, info, err
}

func readAll(f *os.File, info fs.FileInfo, limit int64) ([]byte, error) {
	if info.Size() > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", f.Name(), limit)
	}
	b := make([]byte, info.Size()+1) // one more, to see the end
	n, err := io.ReadFull(f, b)
	switch {
	case err == nil:
		return nil, fmt.Errorf("%s grows while it is read", f.Name())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return b[:n], nil
	}
	return nil, err
}
