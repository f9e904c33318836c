package serve

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"agentvm/internal/httpserver"
)

const (
	maxKept     = 1000      // answers that are kept for keys of idempotency
	maxKeptBody = 256 << 10 // bytes of one
	keptTime    = 24 * time.Hour
	maxKeptKey  = 255
)

// keptAnswers are answers to requests with an Idempotency-Key, by which a client that has lost one gets it again and nothing is done twice
// (draft-ietf-httpapi-idempotency-key-header).
type keptAnswers struct {
	mu    sync.Mutex
	byKey map[string]*keptAnswer
	order []string // oldest first
}

type keptAnswer struct {
	request [sha256.Size]byte
	at      time.Time
	done    bool
	status  int
	header  http.Header
	body    []byte
}

// serve answers a request by what was answered to the one with the same key before, or by next.
func (k *keptAnswers) serve(w http.ResponseWriter, r *http.Request, key string, next http.HandlerFunc) {
	if len(key) > maxKeptKey {
		WriteProblem(w, invalid("the Idempotency-Key is longer than %d bytes", maxKeptKey))
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		WriteProblem(w, err)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	id := fmt.Sprint(httpserver.ClientOf(r.Context()), "\n", r.URL.RequestURI(), "\n", key)
	entry, old := k.begin(id, sha256.Sum256(body))
	switch {
	case !old:
		k.run(w, r, id, entry, next)
	case entry == nil:
		WriteProblem(w, problemf(http.StatusUnprocessableEntity, "there was another request with this Idempotency-Key"))
	case !entry.done:
		WriteProblem(w, problemf(http.StatusConflict, "a request with this Idempotency-Key is being answered"))
	default:
		for field, values := range entry.header {
			w.Header()[field] = values
		}
		w.WriteHeader(entry.status)
		_, _ = w.Write(entry.body)
	}
}

// begin finds the entry of an id, or makes one. A nil one is of another request.
func (k *keptAnswers) begin(id string, request [sha256.Size]byte) (entry *keptAnswer, old bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for len(k.order) > 0 && (len(k.order) >= maxKept || now.Sub(k.byKey[k.order[0]].at) > keptTime) {
		delete(k.byKey, k.order[0])
		k.order = k.order[1:]
	}
	if entry := k.byKey[id]; entry != nil {
		if entry.request != request {
			return nil, true
		}
		copied := *entry
		return &copied, true
	}
	if k.byKey == nil {
		k.byKey = map[string]*keptAnswer{}
	}
	entry = &keptAnswer{request: request, at: now}
	k.byKey[id] = entry
	k.order = append(k.order, id)
	return entry, false
}

// run answers, and keeps the answer unless it is a failure of the server or too long: then the next request with the key is done anew.
func (k *keptAnswers) run(w http.ResponseWriter, r *http.Request, id string, entry *keptAnswer, next http.HandlerFunc) {
	copied := &copying{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if copied.status >= 500 || copied.tooLong || !copied.wrote {
			delete(k.byKey, id)
			k.order = slices.DeleteFunc(k.order, func(other string) bool { return other == id })
			return
		}
		entry.status, entry.header, entry.body, entry.done = copied.status, w.Header().Clone(), copied.body, true
	}()
	next(copied, r)
}

// copying keeps a copy of an answer.
type copying struct {
	http.ResponseWriter
	status         int
	body           []byte
	wrote, tooLong bool
}

func (c *copying) WriteHeader(status int) {
	c.status, c.wrote = status, true
	c.ResponseWriter.WriteHeader(status)
}

func (c *copying) Write(p []byte) (int, error) {
	c.wrote = true
	if c.tooLong = c.tooLong || len(c.body)+len(p) > maxKeptBody; !c.tooLong {
		c.body = append(c.body, p...)
	}
	return c.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (c *copying) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// locks are locks by name.
type locks struct {
	mu   sync.Mutex
	held map[string]bool
}

// try takes a lock, or reports that it is taken.
func (l *locks) try(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[name] {
		return false
	}
	if l.held == nil {
		l.held = map[string]bool{}
	}
	l.held[name] = true
	return true
}

func (l *locks) give(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, name)
}
