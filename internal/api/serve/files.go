package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"agentvm/internal/httpserver"
	"agentvm/vm"
)

// File is what the guest reports about a file.
type File struct {
	Name     string    `json:"name"`
	Type     string    `json:"type" jsonschema:"file, directory, link or other"`
	Size     int64     `json:"size"`
	Mode     string    `json:"mode" jsonschema:"permissions in octal"`
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty" jsonschema:"of a link"`
}

// Move names a file's new place.
type Move struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func fileOf(i vm.FileInfo) File {
	kind := "other"
	switch {
	case i.Mode.IsRegular():
		kind = "file"
	case i.IsDir():
		kind = "directory"
	case i.Mode.Type() == fs.ModeSymlink:
		kind = "link"
	}
	return File{
		Name: i.Name, Type: kind, Size: i.Size, Mode: fmt.Sprintf("%04o", i.Mode.Perm()), UID: i.UID, GID: i.GID, Modified: i.Modified, Target: i.Target,
	}
}

func (s *Server) fileRoutes() []route {
	where := parameter{name: "path", usage: "an absolute path in the VM", required: true}
	return []route{
		{
			method: "GET", path: "/v1/vms/{vm}/files", summary: "Reads a file", rawOut: "application/octet-stream",
			status: http.StatusOK, stream: true, serve: s.readFile, query: []parameter{where},
		},
		{
			method: "PUT", path: "/v1/vms/{vm}/files", summary: "Writes a file, and the directories above it", rawIn: "application/octet-stream",
			status: http.StatusNoContent, stream: true, serve: s.writeFile,
			query: []parameter{where, {name: "mode", usage: "permissions in octal; default: those of the file that is replaced, or 644"}},
		},
		call("DELETE", "/v1/vms/{vm}/files", "Removes a file, or a directory with its contents", s.onFile(func(r *http.Request, f *vm.Files, at string) error {
			if _, err := f.Lstat(r.Context(), at); err != nil {
				return err
			}
			return f.RemoveAll(r.Context(), at)
		})).with(where),
		call("GET", "/v1/vms/{vm}/files/info", "Describes a file; of a link the link itself, not its target", func(r *http.Request, _ struct{}) (out File, err error) {
			_, err = s.onFile(func(r *http.Request, f *vm.Files, at string) error {
				info, err := f.Lstat(r.Context(), at)
				out = fileOf(info)
				return err
			})(r, struct{}{})
			return out, err
		}).with(where),
		call("GET", "/v1/vms/{vm}/files/list", "Lists a directory", func(r *http.Request, _ struct{}) (out []File, err error) {
			_, err = s.onFile(func(r *http.Request, f *vm.Files, at string) error {
				list, err := f.List(r.Context(), at)
				out = make([]File, 0, len(list))
				for _, info := range list {
					out = append(out, fileOf(info))
				}
				return err
			})(r, struct{}{})
			return out, err
		}).with(where),
		call("POST", "/v1/vms/{vm}/files/directory", "Makes a directory, and those above it", s.onFile(func(r *http.Request, f *vm.Files, at string) error {
			return f.MkdirAll(r.Context(), at, 0o755)
		})).with(where),
		call("POST", "/v1/vms/{vm}/files/move", "Renames a file or directory", func(r *http.Request, in Move) (none struct{}, err error) {
			if err := errors.Join(checkPath(in.From), checkPath(in.To)); err != nil {
				return none, invalid("%v", err)
			}
			v, err := s.open(r)
			if err != nil {
				return none, err
			}
			defer v.Close()
			return none, v.Files().Rename(r.Context(), in.From, in.To)
		}),
	}
}

// onFile makes the function of a route about the path of a request's query.
func (s *Server) onFile(do func(*http.Request, *vm.Files, string) error) func(*http.Request, struct{}) (struct{}, error) {
	return func(r *http.Request, _ struct{}) (none struct{}, err error) {
		at := r.URL.Query().Get("path")
		if err := checkPath(at); err != nil {
			return none, invalid("%v", err)
		}
		v, err := s.open(r)
		if err != nil {
			return none, err
		}
		defer v.Close()
		return none, do(r, v.Files(), at)
	}
}

// checkPath refuses paths that mean something else than they say. All are paths of the guest: there is no way to a file of the host.
func checkPath(at string) error {
	if !path.IsAbs(at) || path.Clean(at) != strings.TrimSuffix(at, "/") && at != "/" || strings.ContainsRune(at, 0) {
		return fmt.Errorf("path %q: want an absolute path without . and ..", at)
	}
	return nil
}

// readFile sends a file. It announces the size when the guest knows it: what is in /proc has none.
func (s *Server) readFile(w http.ResponseWriter, r *http.Request) {
	_, err := s.onFile(func(r *http.Request, f *vm.Files, at string) error {
		ctx := r.Context()
		info, err := f.Stat(ctx, at)
		if err == nil && !info.Mode.IsRegular() {
			err = invalid("%s is no regular file", at)
		}
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if info.Size > 0 {
			w.Header().Set("Content-Length", strconv.FormatInt(info.Size, 10))
		}
		begun := &begunWriter{w: httpserver.PatientWriter(w, writeTime)}
		if _, err = f.ReadTo(ctx, at, begun); err != nil && begun.begun {
			panic(http.ErrAbortHandler) // so that the client sees that it is not complete
		}
		return err
	})(r, struct{}{})
	if err != nil {
		w.Header().Del("Content-Length")
		WriteProblem(w, err)
	}
}

// begunWriter notes that something was written.
type begunWriter struct {
	w     http.ResponseWriter
	begun bool
}

func (b *begunWriter) Write(p []byte) (int, error) {
	b.begun = true
	return b.w.Write(p)
}

func (s *Server) writeFile(w http.ResponseWriter, r *http.Request) {
	_, err := s.onFile(func(r *http.Request, f *vm.Files, at string) error {
		ctx := r.Context()
		mode := fs.FileMode(0)
		if text := r.URL.Query().Get("mode"); text != "" {
			n, err := strconv.ParseUint(text, 8, 32)
			if err != nil || n == 0 || n > 0o777 {
				return invalid("mode %q: want octal permissions from 1 to 777", text)
			}
			mode = fs.FileMode(n)
		} else {
			switch info, err := f.Stat(ctx, at); {
			case err == nil:
				mode = info.Mode.Perm()
			case errors.Is(err, fs.ErrNotExist):
				mode = 0o644
			default:
				return err
			}
		}
		if err := f.MkdirAll(ctx, path.Dir(at), 0o755); err != nil {
			return err
		}
		return f.WriteFrom(ctx, at, httpserver.PatientBody(w, r, bodyTime), mode)
	})(r, struct{}{})
	if err != nil {
		WriteProblem(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
