package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"agentvm/client"
	"agentvm/internal/api/agenttool"
	"agentvm/vm"
)

// Editor is Anthropic's text editor (text_editor_20250728). Options.MaxOutput is its max_characters.
type Editor struct {
	v client.AnyVM
	o Options
}

// EditorInput is the input of a call. Paths are absolute.
type EditorInput struct {
	Command    string `json:"command"` // view, create, str_replace or insert
	Path       string `json:"path"`
	ViewRange  []int  `json:"view_range,omitempty"`  // view: the first line and the last one, -1 for the end
	FileText   string `json:"file_text,omitempty"`   // create
	OldStr     string `json:"old_str,omitempty"`     // str_replace: it occurs exactly once
	NewStr     string `json:"new_str,omitempty"`     // str_replace, and insert of older versions
	InsertLine *int   `json:"insert_line,omitempty"` // insert: the line behind which the text goes, 0 for the beginning
	InsertText string `json:"insert_text,omitempty"` // insert
}

// Call views or changes a file. The error is ctx's.
func (e *Editor) Call(ctx context.Context, in EditorInput) (Result, error) {
	text, err := "", error(nil)
	switch {
	case !path.IsAbs(in.Path) || strings.ContainsRune(in.Path, 0):
		err = fmt.Errorf("path %q: want an absolute path", in.Path)
	case in.Command == "view":
		text, err = e.view(ctx, in)
	case in.Command == "create":
		var created bool
		if created, err = agenttool.Write(ctx, e.v.Files(), in.Path, []byte(in.FileText), 0); created {
			text = in.Path + " was created"
		} else {
			text = in.Path + " was replaced"
		}
	case in.Command == "str_replace":
		text, err = e.replace(ctx, in)
	case in.Command == "insert":
		text, err = e.insert(ctx, in)
	default:
		err = fmt.Errorf("command %q: want view, create, str_replace or insert", in.Command)
	}
	switch {
	case err == nil:
		return Result{Text: text}, nil
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case errors.Is(err, fs.ErrNotExist):
		return mistake("%s: there is no such file or directory", in.Path), nil
	}
	return mistake("%v", err), nil
}

func (e *Editor) view(ctx context.Context, in EditorInput) (string, error) {
	info, err := e.v.Files().Stat(ctx, in.Path)
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		if len(in.ViewRange) > 0 {
			return "", fmt.Errorf("%s is a directory: view_range is for files", in.Path)
		}
		return e.list(ctx, in.Path)
	}
	content, err := agenttool.ReadText(ctx, e.v.Files(), in.Path)
	if err != nil {
		return "", err
	}
	list := split(content)
	from, to := 1, len(list)
	if len(in.ViewRange) > 0 {
		if len(in.ViewRange) != 2 {
			return "", fmt.Errorf("view_range %v: want two numbers", in.ViewRange)
		}
		if from, to = in.ViewRange[0], in.ViewRange[1]; to == -1 {
			to = len(list)
		}
		if from < 1 || from > max(len(list), 1) || to < from-1 || to > len(list) {
			return "", fmt.Errorf("view_range %v: %s has %d lines; want a first one from 1 on, and a last one behind it or -1", in.ViewRange, in.Path, len(list))
		}
	}
	text := numbered(list, from, to)
	if len(text) > e.o.MaxOutput {
		end := strings.LastIndexByte(text[:e.o.MaxOutput], '\n') + 1
		if end == 0 {
			return shorten(text, 0, e.o.MaxOutput), nil
		}
		return text[:end] + fmt.Sprintf("[the file goes on: view_range [%d, -1]]", from+strings.Count(text[:end], "\n")), nil
	}
	return text, nil
}

// split returns the lines of a text, each with its end.
func split(content []byte) [][]byte {
	list := bytes.SplitAfter(content, []byte("\n"))
	return list[:len(list)-1+min(1, len(list[len(list)-1]))]
}

// numbered returns lines with their numbers, from one to another.
func numbered(list [][]byte, from, to int) string {
	var b strings.Builder
	for i := max(from, 1); i <= min(to, len(list)); i++ {
		fmt.Fprintf(&b, "%6d\t%s\n", i, bytes.ToValidUTF8(bytes.TrimSuffix(list[i-1], []byte("\n")), []byte("\uFFFD")))
	}
	return b.String()
}

// maxListed bounds the entries of a directory that is viewed.
const maxListed = 1000

// list lists a directory and those in it, without hidden files.
func (e *Editor) list(ctx context.Context, dir string) (string, error) {
	all, err := e.names(ctx, dir, 2)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s and what is in it, two levels deep, without hidden files:\n", dir)
	for _, name := range all[:min(len(all), maxListed)] {
		text += name + "\n"
	}
	if more := len(all) - maxListed; more > 0 {
		text += leftOut(more)
	}
	return shorten(text, 0, e.o.MaxOutput), nil
}

func (e *Editor) names(ctx context.Context, dir string, levels int) (names []string, err error) {
	list, err := e.v.Files().List(ctx, dir)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b vm.FileInfo) int { return strings.Compare(a.Name, b.Name) })
	for _, i := range list {
		if strings.HasPrefix(i.Name, ".") || len(names) > maxListed {
			continue
		}
		name := path.Join(dir, i.Name)
		if !i.IsDir() {
			names = append(names, name)
			continue
		}
		names = append(names, name+"/")
		if levels > 1 {
			below, err := e.names(ctx, name, levels-1)
			if err != nil && ctx.Err() != nil {
				return nil, err
			}
			names = append(names, below...) // none where the user may not look
		}
	}
	return names, nil
}

// around is how many lines before and behind a change are shown.
const around = 4

func (e *Editor) replace(ctx context.Context, in EditorInput) (string, error) {
	if in.OldStr == "" {
		return "", errors.New("old_str is empty: want the text to replace")
	}
	at := 0
	content, err := agenttool.Edit(ctx, e.v.Files(), in.Path, func(content []byte) ([]byte, error) {
		old := []byte(in.OldStr)
		switch count := bytes.Count(content, old); count {
		case 1:
		case 0:
			return nil, fmt.Errorf("no match: old_str is not in %s as it is given, with its white space", in.Path)
		default:
			var places []string
			for from := 0; len(places) < 10; from++ {
				i := bytes.Index(content[from:], old)
				if i < 0 {
					break
				}
				from += i + len(old) - 1
				places = append(places, fmt.Sprint(1+bytes.Count(content[:from+1-len(old)], []byte("\n"))))
			}
			return nil, fmt.Errorf("%d matches of old_str in %s, in the lines %s: give more of what is around one of them", count, in.Path, strings.Join(places, ", "))
		}
		at = 1 + bytes.Count(content[:bytes.Index(content, old)], []byte("\n"))
		return agenttool.Replace(in.Path, content, in.OldStr, in.NewStr, 1)
	})
	return e.changed(in.Path, content, at, strings.Count(in.NewStr, "\n")), err
}

func (e *Editor) insert(ctx context.Context, in EditorInput) (string, error) {
	text := in.InsertText
	if text == "" {
		text = in.NewStr
	}
	if in.InsertLine == nil || text == "" {
		return "", errors.New("insert: want insert_line and insert_text")
	}
	if text = lines(text); len(text) > agenttool.MaxEdit {
		return "", fmt.Errorf("insert_text has more than %d bytes", agenttool.MaxEdit)
	}
	content, err := agenttool.Edit(ctx, e.v.Files(), in.Path, func(content []byte) ([]byte, error) {
		list := split(content)
		if *in.InsertLine < 0 || *in.InsertLine > len(list) {
			return nil, fmt.Errorf("insert_line %d: %s has %d lines; want 0 to %[3]d", *in.InsertLine, in.Path, len(list))
		}
		before := lines(string(bytes.Join(list[:*in.InsertLine], nil)))
		return slices.Concat([]byte(before), []byte(text), bytes.Join(list[*in.InsertLine:], nil)), nil
	})
	return e.changed(in.Path, content, *in.InsertLine+1, strings.Count(text, "\n")-1), err
}

// changed shows the lines of a change and around it.
func (e *Editor) changed(name string, content []byte, at, more int) string {
	return shorten(fmt.Sprintf("%s was changed. It is now, there:\n%s", name, numbered(split(content), at-around, at+more+around)), 0, e.o.MaxOutput)
}
