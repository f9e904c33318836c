package pod

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"agentvm/internal/host/atomicfile"
)

const maxCreate = 4 << 20 // bytes of the request that makes a sandbox

// kept is the request that has made the pod's sandbox: what a container that is started again makes it of, with the files of its VM.
type kept struct {
	New  string          `json:"new"`
	Body json.RawMessage `json:"body"`
}

// create answers the request that makes the pod's sandbox, and keeps it when it has succeeded.
func (s *Server) create(w http.ResponseWriter, r *http.Request, sandboxes http.Handler) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCreate))
	if err != nil || !json.Valid(body) {
		writeFailure(w, http.StatusBadRequest, "the request is no JSON, or too long")
		return
	}
	s.make(w, r, body, sandboxes)
}

// make has e2b make the pod's sandbox.
func (s *Server) make(w http.ResponseWriter, r *http.Request, body []byte, sandboxes http.Handler) {
	record, err := json.Marshal(kept{r.Header.Get(HeaderNew), body})
	if err != nil {
		panic(err) // strings and valid JSON
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	a := answer{header: http.Header{}}
	sandboxes.ServeHTTP(&a, r)
	if a.status == http.StatusCreated && s.config.Kept != "" {
		if err := atomicfile.Write(s.config.Kept, record); err != nil {
			s.config.Logger.Warn("a restart of this container will lose the sandbox", "err", err)
		}
	}
	a.copyTo(w)
}

// Continue makes the sandbox again that this pod had before its container was started again. made is whether there was one.
func (s *Server) Continue(ctx context.Context) (made bool, err error) {
	if s.config.Kept == "" {
		return false, nil
	}
	text, err := os.ReadFile(s.config.Kept)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var k kept
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		return false, fmt.Errorf("the sandbox that this pod had: %s: %w", s.config.Kept, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v2/sandboxes", bytes.NewReader(k.Body))
	if err != nil {
		return false, err
	}
	r.Header.Set(HeaderNew, k.New)
	r.Header.Set("X-Api-Key", s.config.Key)
	a := answer{header: http.Header{}}
	s.e2b.Handler().ServeHTTP(&a, r)
	if a.status != http.StatusCreated {
		return false, fmt.Errorf("the sandbox that this pod had: %d %s", a.status, bytes.TrimSpace(a.body.Bytes()))
	}
	return true, nil
}

// answer is one that is kept in memory.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// SetReadDeadline and SetWriteDeadline are for http.ResponseController: memory has none to wait for.
func (a *answer) SetReadDeadline(time.Time) error  { return nil }
func (a *answer) SetWriteDeadline(time.Time) error { return nil }

func (a *answer) copyTo(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}
