package agenttool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"agentvm/vm"
)

// ErrEnough ends a read whose rest is not needed.
var ErrEnough = errors.New("enough was read")

// Window is a writer that keeps a part of what is written to it: from a byte or a line on, up to a length and a number of lines.
type Window struct {
	Skip, SkipLines int64 // what is left to skip
	Lines           int64 // what is left to keep; negative: no bound
	Limit           int   // bytes to keep at most
	Kept            []byte
	Offset          int64 // of Kept in the file
	More            bool
}

// Write fails with ErrEnough when there is more than the Window.
func (w *Window) Write(b []byte) (int, error) {
	all := len(b)
	for len(b) > 0 && (w.Skip > 0 || w.SkipLines > 0) {
		n := len(b)
		if w.SkipLines > 0 {
			if i := bytes.IndexByte(b, '\n'); i >= 0 {
				n, w.SkipLines = i+1, w.SkipLines-1
			}
		} else {
			n = int(min(w.Skip, int64(n)))
			w.Skip -= int64(n)
		}
		w.Offset += int64(n)
		b = b[n:]
	}
	for len(b) > 0 {
		if len(w.Kept) == w.Limit || w.Lines == 0 {
			w.More = true
			return 0, ErrEnough
		}
		n := min(len(b), w.Limit-len(w.Kept))
		if i := bytes.IndexByte(b[:n], '\n'); i >= 0 && w.Lines > 0 {
			n, w.Lines = i+1, w.Lines-1
		}
		w.Kept = append(w.Kept, b[:n]...)
		b = b[n:]
	}
	return all, nil
}

// Write creates or replaces a file, and the directories above it. A mode of 0 is that of the file that is replaced, or 644.
func Write(ctx context.Context, files *vm.Files, at string, content []byte, mode fs.FileMode) (created bool, err error) {
	info, err := files.Stat(ctx, at)
	created = errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !created:
		return false, err
	case err == nil && info.IsDir():
		return false, fmt.Errorf("%s is a directory", at)
	case created:
		if err := files.MkdirAll(ctx, path.Dir(at), 0o755); err != nil {
			return false, err
		}
		if mode == 0 {
			mode = 0o644
		}
	}
	return created, replace(ctx, files, at, content, mode)
}

// replace writes a file that is there, where its symbolic links lead.
func replace(ctx context.Context, files *vm.Files, at string, content []byte, mode fs.FileMode) error {
	target, err := finalPath(ctx, files, at)
	if err != nil {
		return err
	}
	return files.WriteFile(ctx, target, content, mode)
}

// maxLinks bounds the symbolic links that lead to a file.
const maxLinks = 20

// finalPath follows symbolic links at the end of a path, which a write would replace.
func finalPath(ctx context.Context, files *vm.Files, at string) (string, error) {
	for range maxLinks {
		info, err := files.Lstat(ctx, at)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode&fs.ModeSymlink == 0 {
			return at, nil
		}
		if err != nil {
			return "", err
		}
		if path.IsAbs(info.Target) {
			at = info.Target
		} else {
			at = path.Dir(at) + "/" + info.Target // the guest resolves "..", behind links of the directory
		}
	}
	return "", fmt.Errorf("%s: more than %d symbolic links", at, maxLinks)
}

// MaxEdit bounds the files that are edited, in bytes; an edit may double it.
const MaxEdit = 8 << 20

// ReadText returns the content of a file that can be edited.
func ReadText(ctx context.Context, files *vm.Files, at string) ([]byte, error) {
	w := Window{Lines: -1, Limit: MaxEdit}
	if _, err := files.ReadTo(ctx, at, &w); w.More {
		return nil, fmt.Errorf("%s has more than %d bytes: edit it with a command", at, MaxEdit)
	} else if err != nil {
		return nil, err
	}
	return w.Kept, nil
}

// Edit replaces the content of a file by what change makes of it.
func Edit(ctx context.Context, files *vm.Files, at string, change func(content []byte) ([]byte, error)) (content []byte, err error) {
	if content, err = ReadText(ctx, files, at); err != nil {
		return nil, err
	}
	if content, err = change(content); err != nil {
		return nil, err
	}
	return content, replace(ctx, files, at, content, 0)
}

// Replace returns content with a text replaced that occurs count times in it.
func Replace(at string, content []byte, old, new string, count int) ([]byte, error) {
	if len(content)+count*(len(new)-len(old)) > 2*MaxEdit {
		return nil, fmt.Errorf("%s would have more than %d bytes", at, 2*MaxEdit)
	}
	return bytes.ReplaceAll(content, []byte(old), []byte(new)), nil
}
