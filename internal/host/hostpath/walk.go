package hostpath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxLinks bounds the links on the way; it is Linux's bound.
const maxLinks = 40

type walkOptions struct {
	follow  bool // follow links
	mayMiss bool // the last component may be missing
}

// entry is an open directory on the way, or the file that a name leads to.
type entry struct {
	step
	file   *os.File // nil: it is no directory
	held   *os.File // Place.held
	mode   fs.FileMode
	target string // of a link
	magic  bool   // a link that only the system can follow
}

func (e entry) files() (list []*os.File) {
	for _, f := range []*os.File{e.file, e.held} {
		if f != nil {
			list = append(list, f)
		}
	}
	return list
}

// walker is the state of a walk.
//
//	stack: /  home  u  p      each open, found in the one before
//	todo:  cache  x           components that are left; a link's target is put before them
type walker struct {
	options walkOptions
	asked   string
	volume  string // on Windows, like C:
	stack   []entry
	todo    []string
	links   []link
}

// walk resolves an absolute path.
func walk(path string, o walkOptions) (*Place, error) {
	w := &walker{options: o, asked: path}
	defer w.close()
	if err := w.begin(path); err != nil {
		return nil, err
	}
	for len(w.todo) > 0 {
		name := w.todo[0]
		w.todo = w.todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			w.up()
			continue
		}
		found, err := lookup(w.top(), w.real(), name)
		if errors.Is(err, fs.ErrNotExist) && o.mayMiss && w.isLast() {
			return w.place(entry{step: step{name: name}}, true)
		}
		if err != nil {
			return nil, err
		}
		switch {
		case found.mode.Type() == fs.ModeSymlink:
			if found.magic && o.follow && w.isLast() {
				return w.place(found, false)
			}
			if err := w.follow(found); err != nil {
				return nil, err
			}
		case found.mode.IsDir():
			w.stack = append(w.stack, found)
		case w.isLast():
			return w.place(found, false)
		default:
			if found.held != nil {
				found.held.Close()
			}
			return nil, &fs.PathError{Op: "open", Path: filepath.Join(w.real(), name), Err: syscall.ENOTDIR}
		}
	}
	last := w.stack[len(w.stack)-1]
	w.stack = w.stack[:len(w.stack)-1]
	return w.place(last, false)
}

// begin goes to the root of an absolute path.
func (w *walker) begin(path string) error {
	w.close()
	w.volume = filepath.VolumeName(path)
	root, err := openRoot(w.volume)
	if err != nil {
		return err
	}
	w.stack = []entry{root}
	w.queue(path[len(w.volume):])
	return nil
}

// queue puts the components of a path before those that are left.
func (w *walker) queue(path string) {
	components := strings.FieldsFunc(path, func(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) })
	w.todo = append(components, w.todo...)
}

func (w *walker) top() entry { return w.stack[len(w.stack)-1] }

func (w *walker) up() {
	if n := len(w.stack) - 1; n > 0 {
		w.stack[n].file.Close()
		w.stack = w.stack[:n]
	}
}

func (w *walker) isLast() bool {
	return !slices.ContainsFunc(w.todo, func(name string) bool { return name != "" && name != "." })
}

// real returns the path of the current directory.
func (w *walker) real() string {
	names := []string{w.volume + string(filepath.Separator)}
	for _, e := range w.stack[1:] {
		names = append(names, e.name)
	}
	return filepath.Join(names...)
}

func (w *walker) steps() (list []step) {
	for _, e := range w.stack {
		list = append(list, e.step)
	}
	return list
}

// follow puts a link's target before the components that are left.
func (w *walker) follow(e entry) error {
	at := filepath.Join(w.real(), e.name)
	if !w.options.follow {
		return &LinkError{Path: w.asked, Link: at, Target: e.target}
	}
	if len(w.links) == maxLinks {
		return &fs.PathError{Op: "open", Path: w.asked, Err: syscall.ELOOP}
	}
	w.links = append(w.links, link{path: at, target: e.target, in: w.steps(), where: locate(w.top().file, w.real())})
	if filepath.IsAbs(e.target) {
		return w.begin(e.target)
	}
	w.queue(e.target)
	return nil
}

// place returns the file that the walk has found in the current directory; for the root itself there is none.
func (w *walker) place(found entry, missing bool) (*Place, error) {
	p := &Place{Missing: missing, Type: found.mode.Type(), above: w.steps(), base: found.name, links: w.links, magic: found.magic, dir: found.file, held: found.held, born: found.born}
	p.Identity = Identity{Path: w.asked, Device: found.id.device, File: found.id.file, Boot: boot()}
	if n := len(w.stack); n == 0 {
		p.Real = w.volume + string(filepath.Separator)
	} else {
		p.Real = filepath.Join(w.real(), found.name)
		p.parent = w.stack[n-1].file
		w.stack = w.stack[:n-1]
	}
	return p, nil
}

func (w *walker) close() {
	for _, e := range w.stack {
		if e.file != nil {
			e.file.Close()
		}
	}
	w.stack = nil
}
