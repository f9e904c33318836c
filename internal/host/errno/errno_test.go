package errno

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"testing"
)

// TestNames: there and back again is the same number, and where the host is Linux its numbers are those of the table.
func TestNames(t *testing.T) {
	for number, host := range hosts {
		if got := Of(host); got != number {
			t.Errorf("%v is %v", host, got)
		}
		if runtime.GOOS == "linux" && int32(host) != int32(number) {
			t.Errorf("%v is %d here and %d in the table", host, int(host), number)
		}
	}
	if got := Errno(4711).Host(); got != 0 {
		t.Errorf("an unknown number is %v", got)
	}
	if got := Errno(4711).Error(); got != "errno 4711" {
		t.Error(got)
	}
}

// TestNumbersWithoutAName: what a guest must not take for another error has no number.
func TestNumbersWithoutAName(t *testing.T) {
	if runtime.GOOS == "linux" {
		t.Skip("the host's numbers are Linux's")
	}
	if got := Of(syscall.Errno(0x1fffffff)); got != 0 {
		t.Error(got)
	}
}

func TestIn(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want Errno
	}{
		{"nil", nil, 0},
		{"no number", fs.ErrNotExist, 0},
		{"Linux's", fmt.Errorf("wrapped: %w", ENFILE), ENFILE},
		{"the host's", &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, EACCES},
		{"of a link", &os.LinkError{Op: "rename", Old: "x", New: "y", Err: syscall.ENOENT}, ENOENT},
		{"two names of one number", syscall.ENOTSUP, EOPNOTSUPP},
		{"WSAECONNREFUSED", os.NewSyscallError("connect", syscall.Errno(10061)), ECONNREFUSED},
	} {
		if got := In(tc.err); got != tc.want {
			t.Errorf("%s: %v became %d, want %d", tc.name, tc.err, got, tc.want)
		}
	}
}
