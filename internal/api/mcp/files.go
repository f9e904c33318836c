package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/internal/api/agenttool"
	"agentvm/vm"
)

type readInput struct {
	VM        string `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Path      string `json:"path" jsonschema:"absolute path in the VM"`
	Line      int64  `json:"line,omitempty" jsonschema:"the first line to return, from 1; not with offset"`
	Lines     int64  `json:"lines,omitempty" jsonschema:"how many lines to return; default: as many as max_output allows"`
	Offset    int64  `json:"offset,omitempty" jsonschema:"the first byte to return; not with line"`
	Base64    bool   `json:"base64,omitempty" jsonschema:"return the bytes in base64, for files that are not text"`
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
	Replace bool   `json:"not_text,omitempty" jsonschema:"content has U+FFFD in place of bytes that are not UTF-8: set base64 to get them"`
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
	w := agenttool.Window{Skip: in.Offset, SkipLines: max(in.Line-1, 0), Lines: in.Lines, Limit: limit}
	if in.Lines == 0 {
		w.Lines = -1
	}
	if in.Base64 {
		w.Limit = limit / 4 * 3
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
	if _, err := v.Files().ReadTo(ctx, in.Path, &w); err != nil && !(w.More && errors.Is(err, agenttool.ErrEnough)) {
		return nil, nil, err
	}
	if in.Line > 1 && w.SkipLines > 0 || in.Offset > 0 && w.Skip > 0 {
		return nil, nil, fmt.Errorf("%s ends before that: it has %d bytes", in.Path, w.Offset)
	}
	out := &readOutput{VM: name, Path: in.Path, Offset: w.Offset, Size: info.Size, More: w.More}
	kept := w.Kept
	if in.Base64 {
		out.Content = base64.StdEncoding.EncodeToString(kept)
	} else {
		if isBinary(kept) {
			return nil, nil, fmt.Errorf("%s is a binary file of %d bytes: set base64 to read it, or look at it with exec, by hexdump or strings", in.Path, info.Size)
		}
		if n, _ := agenttool.Prefix(kept, limit); n < len(kept) {
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
	out.Next = w.Offset + int64(len(kept))
	head := ""
	if out.Replace {
		head = "[not UTF-8: U+FFFD stands for other bytes; set base64 to get them]\n"
	}
	if out.More || out.Offset > 0 {
		head += fmt.Sprintf("[bytes %d to %d of %d]\n", out.Offset, out.Next, out.Size)
	}
	return text(head + out.Content), out, nil
}

// isBinary says whether bytes are no text in any encoding that extends ASCII, in which a character here and there is no UTF-8.
func isBinary(b []byte) bool {
	invalid := 0
	for rest := b; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if r == utf8.RuneError && size == 1 {
			invalid++
		}
		rest = rest[size:]
	}
	return bytes.IndexByte(b, 0) >= 0 || invalid > max(3, len(b)/4)
}

type writeInput struct {
	VM      string `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Path    string `json:"path" jsonschema:"absolute path in the VM"`
	Content string `json:"content"`
	Base64  bool   `json:"base64,omitempty" jsonschema:"content is base64"`
	Mode    string `json:"mode,omitempty" jsonschema:"permissions in octal, such as 755; default: those of the file that is replaced, or 644"`
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
	created, err := agenttool.Write(ctx, v.Files(), in.Path, content, mode)
	if err != nil {
		return nil, nil, err
	}
	return nil, &writeOutput{VM: name, Path: in.Path, Bytes: len(content), Created: created}, nil
}

type editInput struct {
	VM   string  `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Path string  `json:"path" jsonschema:"absolute path in the VM"`
	Old  *string `json:"old_string,omitempty" jsonschema:"the text to replace, exactly as it is in the file"`
	New  *string `json:"new_string,omitempty" jsonschema:"the text to put in its place"`
	All  bool    `json:"replace_all,omitempty" jsonschema:"replace every occurrence"`
	olderEdit
}

// olderEdit has the names that the arguments of edit_file once had.
type olderEdit struct {
	OlderOld *string `json:"old,omitempty" jsonschema:"same as old_string"`
	OlderNew *string `json:"new,omitempty" jsonschema:"same as new_string"`
	OlderAll bool    `json:"all,omitempty" jsonschema:"same as replace_all"`
}

func (s *Server) editFile(ctx context.Context, req *sdk.CallToolRequest, in editInput) (*sdk.CallToolResult, *writeOutput, error) {
	if in.Old != nil && in.OlderOld != nil || in.New != nil && in.OlderNew != nil {
		return nil, nil, errors.New("old and new are the same arguments as old_string and new_string: want one of each")
	}
	before, after, all := cmp.Or(in.Old, in.OlderOld), cmp.Or(in.New, in.OlderNew), in.All || in.OlderAll
	if before == nil || after == nil {
		return nil, nil, errors.New("old_string and new_string are both needed; an empty new_string deletes the text")
	}
	if *before == "" || *before == *after {
		return nil, nil, errors.New("old_string: want a text that is not empty and differs from new_string")
	}
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	defer v.Close()
	count := 0
	content, err := agenttool.Edit(ctx, v.Files(), in.Path, func(content []byte) ([]byte, error) {
		switch count = bytes.Count(content, []byte(*before)); {
		case count == 0:
			return nil, fmt.Errorf("%s does not contain old_string", in.Path)
		case count > 1 && !all:
			return nil, fmt.Errorf("%s contains old_string %d times: include more of the text around it, or set replace_all", in.Path, count)
		}
		return agenttool.Replace(in.Path, content, *before, *after, count)
	})
	if err != nil {
		return nil, nil, err
	}
	return nil, &writeOutput{VM: name, Path: in.Path, Bytes: len(content), Replaced: count}, nil
}

type listInput struct {
	VM    string `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Path  string `json:"path" jsonschema:"absolute path in the VM"`
	After string `json:"after,omitempty" jsonschema:"return entries after this name: next of the previous result"`
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
		_, names := agenttool.Prefix([]byte(i.Name+i.Target), 1<<30)
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
