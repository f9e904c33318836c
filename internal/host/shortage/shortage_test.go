package shortage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"testing"
)

func TestIs(t *testing.T) {
	full := error(syscall.ENOSPC)
	if runtime.GOOS == "windows" {
		full = syscall.Errno(112)
	}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {errors.New("damaged"), false}, {fs.ErrNotExist, false}, {io.ErrUnexpectedEOF, false}, {fs.ErrExist, false},
		{full, true}, {fmt.Errorf("open: %w", &fs.PathError{Op: "open", Path: "x", Err: full}), true},
		{errors.Join(errors.New("a"), full), true}, {fs.ErrPermission, true}, {context.Canceled, true}, {os.ErrDeadlineExceeded, true},
	} {
		if got := Is(test.err); got != test.want {
			t.Errorf("%v: %t", test.err, got)
		}
	}
	if Advice(full) == "" || Advice(errors.New("x")) != "" {
		t.Errorf("advice %q and %q", Advice(full), Advice(errors.New("x")))
	}
}
