package sandboxd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/internal/api/kinds"
	"agentvm/internal/httpserver"
	"agentvm/vm"
)

// pieceTime is how long a client may take to send or receive a piece of a file. Tests have less patience.
var pieceTime = 30 * time.Second

// failure is an answer with an error.
type failure struct {
	status  int
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (f *failure) Error() string { return f.Message }

func invalid(format string, args ...any) error {
	return &failure{http.StatusBadRequest, "INVALID_ARGUMENT", fmt.Sprintf(format, args...)}
}

func writeFailure(w http.ResponseWriter, err error) {
	var f *failure
	if !errors.As(err, &f) {
		copied := failures[kinds.Of(err)]
		copied.Message = err.Error()
		f = &copied
	}
	writeJSON(w, f.status, f)
}

var failures = map[kinds.Kind]failure{
	kinds.Internal: {http.StatusInternalServerError, "INTERNAL", ""},
	kinds.Invalid:  {http.StatusBadRequest, "INVALID_ARGUMENT", ""},
	kinds.NotFound: {http.StatusNotFound, "NOT_FOUND", ""},
	kinds.Conflict: {http.StatusConflict, "CONFLICT", ""},
	kinds.Denied:   {http.StatusForbidden, "PERMISSION_DENIED", ""},
	kinds.TooLarge: {http.StatusRequestEntityTooLarge, "RESOURCE_EXHAUSTED", ""},
	kinds.Stalled:  {http.StatusRequestTimeout, "DEADLINE_EXCEEDED", ""},
	kinds.Ended:    {http.StatusServiceUnavailable, "UNAVAILABLE", ""},
	kinds.Timeout:  {http.StatusGatewayTimeout, "DEADLINE_EXCEEDED", ""},
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

// handler serves files and probes.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", &s.metrics)
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, _ *http.Request) {
		if s.stopping.Load() {
			writeFailure(w, &failure{http.StatusServiceUnavailable, "UNAVAILABLE", "the server is ending"})
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"status": "ok", "uptime_seconds": int64(time.Since(s.began).Seconds())})
	})
	mux.HandleFunc("GET /v1/metadata", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"env": s.metadata()})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeFailure(w, &failure{http.StatusNotFound, "NOT_FOUND", fmt.Sprintf("there is no %s %s", r.Method, r.URL.Path)})
	})
	return s.door(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w = httpserver.PatientWriter(w, pieceTime)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		local, isFile := strings.CutPrefix(r.URL.Path, "/v1/files/") // not by the mux, which would clean the path
		if !isFile {
			mux.ServeHTTP(w, r)
			return
		}
		r.Pattern = "/v1/files/"
		if err := s.serveFile(w, r, local); err != nil {
			writeFailure(w, err)
		}
	}), func(w http.ResponseWriter, r *http.Request, status int) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		text := "a page of another origin has made this request"
		if status == http.StatusMisdirectedRequest {
			text = s.notCalled(r)
		}
		writeFailure(w, &failure{status, "PERMISSION_DENIED", text})
	})
}

// door is that of both ports. The protocol knows no keys.
func (s *Server) door(h http.Handler, refuse func(http.ResponseWriter, *http.Request, int)) http.Handler {
	return httpserver.Door{
		Server: "sandboxd", Handler: h, Metrics: &s.metrics, Audit: s.options.Audit, Refuse: refuse,
		// In a pod, clients use addresses that it does not know.
		IsHost: func(host string) bool {
			return httpserver.IsHost(host, func(netip.Addr) bool { return true }, s.options.Hosts...)
		},
	}.Open()
}

func (s *Server) notCalled(r *http.Request) string {
	return fmt.Sprintf("this server is not called %q: name it with --host", r.Host)
}

var soundsSecret = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`TOKEN|SECRET|PASSWORD|PASSWD|CRED|KEY|AUTH|BEARER|PRIVATE|CERT`)
})

func (s *Server) metadata() map[string]string {
	told := make(map[string]string)
	for name, value := range s.options.Metadata {
		if !soundsSecret().MatchString(strings.ToUpper(name)) {
			told[name] = value
		}
	}
	return told
}

func (s *Server) serveFile(w http.ResponseWriter, r *http.Request, local string) error {
	ctx := r.Context()
	at, info, err := s.resolve(ctx, local)
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		switch {
		case err != nil:
			return err
		case info.IsDir():
			return s.list(w, r, at)
		case !info.Mode.IsRegular():
			return invalid("%s is no regular file", local)
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		content := &content{ctx: ctx, files: s.options.VM.Files(), path: at, size: info.Size}
		defer content.close()
		http.ServeContent(w, r, "", info.Modified, content)
		return nil
	case http.MethodPut:
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && info.IsDir() {
			return invalid("%q is a directory", local)
		}
		return s.put(w, r, at)
	case http.MethodDelete:
		if err != nil {
			return err
		}
		return s.remove(w, r, local, at)
	}
	w.Header().Set("Allow", "GET, HEAD, PUT, DELETE")
	return &failure{http.StatusMethodNotAllowed, "INVALID_ARGUMENT", "want GET, HEAD, PUT or DELETE"}
}

// entry is a file of a listing.
type entry struct {
	Name     string    `json:"name"`
	Size     int64     `json:"size"`
	Type     string    `json:"type"`
	Modified time.Time `json:"modified_at"`
	Mode     string    `json:"mode"`
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, at string) error {
	found, err := s.options.VM.Files().List(r.Context(), at)
	if err != nil {
		return err
	}
	below := strings.TrimPrefix(at, strings.TrimSuffix(s.root, "/"))
	entries := make([]entry, 0, len(found))
	for _, info := range found {
		if info.Mode.Type() == fs.ModeSymlink {
			name := info.Name
			if _, info, err = s.resolve(r.Context(), strings.TrimPrefix(path.Join(below, name), "/")); err != nil {
				if r.Context().Err() != nil {
					return err
				}
				continue // it leads nowhere, or out
			}
			info.Name = name
		}
		kind := "file"
		if info.IsDir() {
			kind = "directory"
		}
		entries = append(entries, entry{info.Name, info.Size, kind, info.Modified.UTC(), fmt.Sprintf("%04o", info.Mode.Perm())})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	writeJSON(w, http.StatusOK, map[string]any{"path": cmp.Or(below, "/"), "entries": entries})
	return nil
}

var modes = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^0[0-7]{3}$`) })

// put writes a file from the body, or from its part "file".
func (s *Server) put(w http.ResponseWriter, r *http.Request, at string) error {
	mode := uint64(0o644)
	if r.URL.Query().Has("mode") {
		text := r.URL.Query().Get("mode")
		if !modes().MatchString(text) {
			return invalid("mode %q: want 0 and three octal digits, as 0644", text)
		}
		mode, _ = strconv.ParseUint(text, 8, 32)
	}
	r.Body = httpserver.PatientBody(w, r, pieceTime)
	var body io.Reader = r.Body
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		parts, err := r.MultipartReader()
		if err != nil {
			return invalid("%v", err)
		}
		for {
			part, err := parts.NextPart()
			if err != nil {
				return invalid("the body has no part named file: %v", err)
			}
			if part.FormName() == "file" {
				body = part
				break
			}
		}
	}
	files := s.options.VM.Files()
	if err := files.MkdirAll(r.Context(), path.Dir(at), 0o755); err != nil {
		return err
	}
	if err := files.WriteFrom(r.Context(), at, body, fs.FileMode(mode)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// remove removes a file, a link itself and not what it leads to, or a directory. Of the root only what is in it.
func (s *Server) remove(w http.ResponseWriter, r *http.Request, local, at string) error {
	recursive := false
	if text := r.URL.Query().Get("recursive"); text != "" {
		var err error
		if recursive, err = strconv.ParseBool(text); err != nil {
			return invalid("recursive %q: want true or false", text)
		}
	}
	ctx, files := r.Context(), s.options.VM.Files()
	var err error
	switch above, name := path.Split(path.Clean(local)); {
	case at == s.root:
		if !recursive {
			return &failure{http.StatusConflict, "CONFLICT", "the sandbox's directory stays: recursive=true removes what is in it"}
		}
		var found []vm.FileInfo
		found, err = files.List(ctx, at)
		for _, info := range found {
			err = errors.Join(err, files.RemoveAll(ctx, path.Join(at, info.Name)))
		}
	default:
		dir, _, dirErr := s.resolve(ctx, strings.TrimSuffix(above, "/"))
		if dirErr != nil {
			return dirErr
		}
		if at = path.Join(dir, name); recursive {
			err = files.RemoveAll(ctx, at)
		} else {
			err = files.Remove(ctx, at)
		}
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// content is a file for http.ServeContent: reading begins at its start, and what is before the offset is left out.
type content struct {
	ctx   context.Context
	files *vm.Files
	path  string
	size  int64

	offset int64
	body   *io.PipeReader
	ended  chan struct{} // of the goroutine that writes to body
}

func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.offset
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return 0, fs.ErrInvalid
	}
	if offset != c.offset {
		c.close()
		c.offset = offset
	}
	return offset, nil
}

func (c *content) Read(p []byte) (int, error) {
	if c.offset >= c.size {
		return 0, io.EOF
	}
	if c.body == nil {
		from, to := io.Pipe()
		c.body, c.ended = from, make(chan struct{})
		go func() {
			defer close(c.ended)
			_, err := c.files.ReadTo(c.ctx, c.path, to)
			to.CloseWithError(err)
		}()
		if _, err := io.CopyN(io.Discard, from, c.offset); err != nil {
			return 0, err
		}
	}
	n, err := c.body.Read(p)
	c.offset += int64(n)
	return n, err
}

func (c *content) close() {
	if c.body != nil {
		_ = c.body.Close()
		<-c.ended
		c.body = nil
	}
}
