package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/vm"
)

type readInput struct {
	VM        string `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Path      string `json:"path" jsonschema:"absolute path in the VM"`
	Line      int64  `json:"line,omitempty" jsonschema:"the first line to return, from 1; not with offset"`
	Lines     int64  `json:"lines,omitempty" jsonschema:"how many lines to return; default: as many as max_output allows"`
	Offset    int64  `json:"offset,omitempty" jsonschema:"the first byte to return; not with line"`
	Base64    bool   `json:"base64,omitempty" jsonschema:"return the bytes in base64, for files that are no text"`
	MaxOutput int    `json:"max_output,omitempty" jsonschema:"bytes of content in the result, 64 to 40000; default 16000"`
}

type readOutput struct {
	VM      string `json:"vm"`
	Path    string `json:"path"`
	Content string `json:"content"`
	Offset  int64  `json:"offset" jsonschema:"of the first byte of content"`
	Next    int64  `json:"next_offset" jsonschema:"where to continue"`
	More    bool   `json:"more" jsonschema:"the file continues"`
	Size    int64  `json:"size" jsonschema:"what the VM says of the file's size"`
	Replace bool   `json:"not_text,omitempty" jsonschema:"content has U+FFFD in place of bytes that are no UTF-8: use base64"`
}

// errEnough ends a read whose rest is not needed.
var errEnough = errors.New("enough was read")

// window keeps a part of what is written to it: from a byte or a line on, up to a length and a number of lines.
type window struct {
	skip, skipLines int64 // what is left to skip
	lines           int64 // what is left to keep; negative: no bound
	limit           int   // bytes to keep at most
	kept            []byte
	offset          int64 // of kept in the file
	more            bool
}

// Write fails with errEnough when there is more than the window.
func (w *window) Write(b []byte) (int, error) {
	all := len(b)
	for len(b) > 0 && (w.skip > 0 || w.skipLines > 0) {
		n := len(b)
		if w.skipLines > 0 {
			if i := bytes.IndexByte(b, '\n'); i >= 0 {
				n, w.skipLines = i+1, w.skipLines-1
			}
		} else {
			n = int(min(w.skip, int64(n)))
			w.skip -= int64(n)
		}
		w.offset += int64(n)
		b = b[n:]
	}
	for len(b) > 0 {
		if len(w.kept) == w.limit || w.lines == 0 {
			w.more = true
			return 0, errEnough
		}
		n := min(len(b), w.limit-len(w.kept))
		if i := bytes.IndexByte(b[:n], '\n'); i >= 0 && w.lines > 0 {
			n, w.lines = i+1, w.lines-1
		}
		w.kept = append(w.kept, b[:n]...)
		b = b[n:]
	}
	return all, nil
}

func (s *Server) readFile(ctx context.Context, req *sdk.CallToolRequest, in readInput) (*sdk.CallToolResult, *readOutput, error) {
	limit, err := budget(in.MaxOutput)
	switch {
	case err != nil:
		return nil, nil, err
	case in.Line < 0 || in.Lines < 0 || in.Offset < 0:
		return nil, nil, errors.New("line, lines and offset: want no negative numbers")
	case in.Line > 0 && in.Offset > 0:
		return nil, nil, errors.New("line and offset: want one of them")
	}
	w := window{skip: in.Offset, skipLines: max(in.Line-1, 0), lines: in.Lines, limit: limit}
	if in.Lines == 0 {
		w.lines = -1
	}
	if in.Base64 {
		w.limit = limit / 4 * 3
	}
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	defer v.Close()
	info, err := v.Files().Stat(ctx, in.Path)
	if err != nil {
		return nil, nil, err
	}
	if _, err := v.Files().ReadTo(ctx, in.Path, &w); err != nil && !(w.more && errors.Is(err, errEnough)) {
		return nil, nil, err
	}
	if in.Line > 1 && w.skipLines > 0 || in.Offset > 0 && w.skip > 0 {
		return nil, nil, fmt.Errorf("%s ends before that: it has %d bytes", in.Path, w.offset)
	}
	out := &readOutput{VM: name, Path: in.Path, Offset: w.offset, Size: info.Size, More: w.more}
	kept := w.kept
	if in.Base64 {
		out.Content = base64.StdEncoding.EncodeToString(kept)
	} else {
		if n, _ := prefix(kept, limit); n < len(kept) {
			kept, out.More = kept[:n], true
		}
		if out.More { // an unfinished character is left to the next read
			for n := 1; n < min(utf8.UTFMax, len(kept)); n++ {
				if at := len(kept) - n; utf8.RuneStart(kept[at]) {
					if !utf8.FullRune(kept[at:]) {
						kept = kept[:at]
					}
					break
				}
			}
		}
		out.Content = strings.ToValidUTF8(string(kept), "\uFFFD")
		out.Replace = !utf8.Valid(kept)
	}
	out.Next = w.offset + int64(len(kept))
	head := ""
	if out.More || out.Offset > 0 {
		head = fmt.Sprintf("[bytes %d to %d of %d]\n", out.Offset, out.Next, out.Size)
	}
	return text(head + out.Content), out, nil
}

type writeInput struct {
	VM      string `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Path    string `json:"path" jsonschema:"absolute path in the VM"`
	Content string `json:"content"`
	Base64  bool   `json:"base64,omitempty" jsonschema:"content is base64"`
	Mode    string `json:"mode,omitempty" jsonschema:"permissions in octal, as 755; default: those of the file that is replaced, or 644"`
}

type writeOutput struct {
	VM       string `json:"vm"`
	Path     string `json:"path"`
	Bytes    int    `json:"bytes"`
	Created  bool   `json:"created,omitempty"`
	Replaced int    `json:"replaced,omitempty" jsonschema:"of edit_file: how often"`
}

func (s *Server) writeFile(ctx context.Context, req *sdk.CallToolRequest, in writeInput) (*sdk.CallToolResult, *writeOutput, error) {
	content := []byte(in.Content)
	if in.Base64 {
		var err error
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, nil, fmt.Errorf("content: %w", err)
		}
	}
	mode := fs.FileMode(0)
	if in.Mode != "" {
		var n uint32
		if _, err := fmt.Sscanf(in.Mode, "%o", &n); err != nil || n == 0 || n > 0o777 {
			return nil, nil, fmt.Errorf("mode %q: want octal permissions from 1 to 777", in.Mode)
		}
		mode = fs.FileMode(n)
	}
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	defer v.Close()
	files := v.Files()
	info, err := files.Stat(ctx, in.Path)
	created := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !created:
		return nil, nil, err
	case err == nil && info.IsDir():
		return nil, nil, fmt.Errorf("%s is a directory", in.Path)
	case created:
		if err := files.MkdirAll(ctx, path.Dir(in.Path), 0o755); err != nil {
			return nil, nil, err
		}
		if mode == 0 {
			mode = 0o644
		}
	}
	target, err := finalPath(ctx, v, in.Path)
	if err == nil {
		err = files.WriteFile(ctx, target, content, mode)
	}
	if err != nil {
		return nil, nil, err
	}
	return nil, &writeOutput{VM: name, Path: in.Path, Bytes: len(content), Created: created}, nil
}

// maxLinks bounds the symbolic links that lead to a file.
const maxLinks = 20

// finalPath follows symbolic links at the end of a path, which a write would replace.
func finalPath(ctx context.Context, v VM, at string) (string, error) {
	for range maxLinks {
		info, err := v.Files().Lstat(ctx, at)
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

// maxEdit bounds the files that are edited, in bytes.
const maxEdit = 8 << 20

type editInput struct {
	VM   string `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Path string `json:"path" jsonschema:"absolute path in the VM"`
	Old  string `json:"old" jsonschema:"the text to replace, as it is in the file"`
	New  string `json:"new" jsonschema:"what takes its place"`
	All  bool   `json:"all,omitempty" jsonschema:"replace it wherever it occurs"`
}

func (s *Server) editFile(ctx context.Context, req *sdk.CallToolRequest, in editInput) (*sdk.CallToolResult, *writeOutput, error) {
	if in.Old == "" || in.Old == in.New {
		return nil, nil, errors.New("old: want a text that is not empty and not the same as new")
	}
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	defer v.Close()
	w := window{lines: -1, limit: maxEdit}
	if _, err := v.Files().ReadTo(ctx, in.Path, &w); w.more {
		return nil, nil, fmt.Errorf("%s has more than %d bytes: edit it with a command", in.Path, maxEdit)
	} else if err != nil {
		return nil, nil, err
	}
	old := []byte(in.Old)
	count := bytes.Count(w.kept, old)
	switch {
	case count == 0:
		return nil, nil, fmt.Errorf("%s: the text old is not found in it", in.Path)
	case count > 1 && !in.All:
		return nil, nil, fmt.Errorf("%s: the text old occurs %d times: give more of what is around it, or set all", in.Path, count)
	case len(w.kept)+count*(len(in.New)-len(in.Old)) > 2*maxEdit:
		return nil, nil, fmt.Errorf("%s would have more than %d bytes", in.Path, 2*maxEdit)
	}
	content := bytes.ReplaceAll(w.kept, old, []byte(in.New))
	target, err := finalPath(ctx, v, in.Path)
	if err == nil {
		err = v.Files().WriteFile(ctx, target, content, 0)
	}
	if err != nil {
		return nil, nil, err
	}
	return nil, &writeOutput{VM: name, Path: in.Path, Bytes: len(content), Replaced: count}, nil
}

type listInput struct {
	VM    string `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Path  string `json:"path" jsonschema:"absolute path in the VM"`
	After string `json:"after,omitempty" jsonschema:"return entries behind this name: next of the result before"`
}

type listEntry struct {
	Name     string    `json:"name"`
	Type     string    `json:"type" jsonschema:"file, dir, link or other"`
	Size     int64     `json:"size,omitempty"`
	Mode     string    `json:"mode" jsonschema:"permissions in octal"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty" jsonschema:"of a link"`
}

type listOutput struct {
	VM      string      `json:"vm"`
	Path    string      `json:"path"`
	Entries []listEntry `json:"entries"`
	Total   int         `json:"entries_total"`
	Next    string      `json:"next,omitempty" jsonschema:"there are more entries: give this as after"`
}

// entryCost is about what an entry takes in a result besides its names, in bytes.
const entryCost = 110

func (s *Server) listDir(ctx context.Context, req *sdk.CallToolRequest, in listInput) (*sdk.CallToolResult, *listOutput, error) {
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	defer v.Close()
	list, err := v.Files().List(ctx, in.Path)
	if err != nil {
		return nil, nil, err
	}
	out := &listOutput{VM: name, Path: in.Path, Entries: []listEntry{}, Total: len(list)}
	slices.SortFunc(list, func(a, b vm.FileInfo) int { return strings.Compare(a.Name, b.Name) })
	spent := 0
	for _, i := range list {
		if i.Name <= in.After && in.After != "" {
			continue
		}
		_, names := prefix([]byte(i.Name+i.Target), 1<<30)
		if spent += entryCost + names; spent > defaultOutput && len(out.Entries) > 0 {
			out.Next = out.Entries[len(out.Entries)-1].Name
			break
		}
		e := listEntry{Name: i.Name, Type: "other", Mode: fmt.Sprintf("%03o", i.Mode.Perm()), Modified: i.Modified, Target: i.Target}
		switch {
		case i.Mode.IsRegular():
			e.Type, e.Size = "file", i.Size
		case i.Mode.IsDir():
			e.Type = "dir"
		case i.Mode&fs.ModeSymlink != 0:
			e.Type = "link"
		}
		out.Entries = append(out.Entries, e)
	}
	return nil, out, nil
}
