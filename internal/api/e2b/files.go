package e2b

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/httpserver"
	"agentvm/vm"
)

const maxParts = 1000 // files of one upload

// errExpired is worded as E2B words it.
var errExpired = &failure{Status: http.StatusUnauthorized, Text: "signature is already expired"}

// signer finds the sandbox of a request for a file. A signed URL may name none: then it is the one whose token has signed it.
func (s *Server) signer(r *http.Request, operation string, q url.Values) (string, error) {
	id := r.Header.Get("E2b-Sandbox-Id")
	if token := r.Header.Get("X-Access-Token"); token != "" {
		if id == "" || !httpserver.Equal(token, s.token(id)) {
			return id, fail(http.StatusUnauthorized, "the header X-Access-Token has a wrong token")
		}
		return id, nil
	}
	ids := []string{id}
	if id == "" {
		s.mu.Lock()
		ids = ids[:0]
		for known := range s.sandboxes {
			ids = append(ids, known)
		}
		s.mu.Unlock()
	}
	expires := q.Get("signature_expiration")
	for _, id := range ids {
		if given := q.Get("signature"); given != "" && httpserver.Equal(given, wire.Signature(q.Get("path"), operation, q.Get("username"), s.token(id), expires)) {
			if expires == "" {
				return id, nil
			}
			if end, err := strconv.ParseInt(expires, 10, 64); err != nil || time.Now().Unix() > end {
				return id, errExpired
			}
			return id, nil
		}
	}
	return id, fail(http.StatusUnauthorized, "the request has no token, and no valid signature")
}

// beginFile finds the sandbox and the user of a request for a file.
func (s *Server) beginFile(r *http.Request, operation string) (*call, url.Values, context.CancelFunc, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, nil, nil, fail(http.StatusBadRequest, "the query: %v", err)
	}
	if err := wire.CheckQuery(q, "path", "username", "signature", "signature_expiration"); err != nil {
		return nil, nil, nil, err
	}
	id, authErr := s.signer(r, operation, q)
	b, live, err := s.find(id)
	if err = cmp.Or(authErr, err); id != "" && authErr != nil && b == nil {
		err = fail(http.StatusBadGateway, "The sandbox was not found")
	}
	if err != nil {
		return nil, nil, nil, err
	}
	c, done, err := s.newCall(r, b, live, q.Get("username"))
	return c, q, done, err
}

func fileError(w http.ResponseWriter, r *http.Request, err error) {
	if status(err) == http.StatusBadGateway {
		writeNoSandbox(w, r)
		return
	}
	writeError(w, err)
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	c, q, done, err := s.beginFile(r, "read")
	if err != nil {
		fileError(w, r, err)
		return
	}
	defer done()
	name, err := c.user.path(q.Get("path"))
	var info vm.FileInfo
	if err == nil {
		info, err = c.sandbox.vm.Files().Stat(c.live, name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fail(http.StatusNotFound, "path '%s' does not exist", name)
	case err == nil && info.IsDir():
		err = fail(http.StatusBadRequest, "path '%s' is a directory", name)
	case err == nil && !info.Mode.IsRegular():
		err = fail(http.StatusBadRequest, "path '%s' is no regular file", name)
	}
	if err != nil {
		fileError(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(name)}))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	if n, err := c.sandbox.vm.Files().ReadTo(c.live, name, w); err != nil {
		s.config.Logger.Debug("a download ended early", "sandbox", c.sandbox.id, "bytes", n, "err", err)
		if n == 0 {
			fileError(w, r, err)
			return
		}
		panic(http.ErrAbortHandler) // the client sees that it has not got all
	}
}

func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	c, q, done, err := s.beginFile(r, "write")
	var wrote []map[string]any
	if err == nil {
		defer done()
		wrote, err = c.upload(q)
	}
	if err != nil {
		fileError(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, wrote)
}

// upload writes the files of a request.
func (c *call) upload(q url.Values) ([]map[string]any, error) {
	for name := range c.Header {
		if len(name) > 11 && name[:11] == "X-Metadata-" {
			return nil, fail(http.StatusBadRequest, "metadata of files is not supported")
		}
	}
	body := io.Reader(c.Body)
	switch c.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip":
		unzip, err := gzip.NewReader(body)
		if err != nil {
			return nil, fail(http.StatusBadRequest, "the body is no gzip: %v", err)
		}
		body = unzip
	default:
		return nil, fail(http.StatusNotAcceptable, "the body's encoding is neither identity nor gzip")
	}
	if isType(c.Request, "application/octet-stream") {
		one, err := c.writeFile(q.Get("path"), body)
		return []map[string]any{one}, err
	}
	kind, parameters, err := mime.ParseMediaType(c.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || parameters["boundary"] == "" {
		return nil, fail(http.StatusBadRequest, "want multipart/form-data or application/octet-stream")
	}
	wrote, parts := []map[string]any{}, multipart.NewReader(body, parameters["boundary"])
	for range maxParts {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return wrote, nil
		}
		if err != nil {
			return nil, fail(http.StatusBadRequest, "the form: %v", err)
		}
		if part.FormName() != "file" {
			continue
		}
		// Part.FileName would drop the directories, which are meant here: the guest's are all the client's.
		_, disposition, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil {
			return nil, fail(http.StatusBadRequest, "the form: %v", err)
		}
		one, err := c.writeFile(cmp.Or(q.Get("path"), disposition["filename"]), part)
		if err != nil {
			return nil, err
		}
		wrote = append(wrote, one)
	}
	return nil, fail(http.StatusBadRequest, "the form has more than %d parts", maxParts)
}

func (c *call) writeFile(given string, r io.Reader) (map[string]any, error) {
	if given == "" {
		return nil, fail(http.StatusBadRequest, "the file has no path")
	}
	name, err := c.user.path(given)
	if err != nil {
		return nil, err
	}
	files, mode := c.sandbox.vm.Files(), fs.FileMode(0o644)
	info, err := files.Stat(c.live, name)
	switch {
	case err == nil && info.IsDir():
		return nil, fail(http.StatusBadRequest, "path is a directory: %s", name)
	case err == nil && !info.Mode.IsRegular():
		return nil, fail(http.StatusBadRequest, "path is no regular file: %s", name)
	case err == nil:
		mode = 0 // it keeps its permissions and owner
	default:
		if err := c.makeParents(path.Dir(name)); err != nil {
			return nil, err
		}
	}
	if err := files.WriteFrom(c.live, name, r, mode); err != nil {
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	if mode != 0 && c.user.uid != 0 {
		if err := files.Chown(c.live, name, vm.Owner{UID: c.user.uid, GID: c.user.gid}); err != nil {
			return nil, err
		}
	}
	return map[string]any{"name": path.Base(name), "path": name, "type": "file"}, nil
}
