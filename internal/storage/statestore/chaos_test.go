package statestore

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// faults is a front of an object store that fails now and then, in the ways that stores and networks do.
type faults struct {
	next http.Handler
	rate int // of 100 requests

	mu    sync.Mutex
	r     *rand.Rand
	n     [5]int
	total int
}

func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	kind := -1
	if f.r.IntN(100) < f.rate {
		kind = f.total % len(f.n)
		f.total++
		f.n[kind]++
	}
	f.mu.Unlock()
	switch kind {
	case 0: // an error before anything was done
		w.WriteHeader(http.StatusInternalServerError)
	case 1: // an error after it was done
		f.next.ServeHTTP(httptest.NewRecorder(), r)
		w.WriteHeader(http.StatusServiceUnavailable)
	case 2: // the connection ends while the request is read
		_, _ = io.CopyN(io.Discard, r.Body, 1000)
		panic(http.ErrAbortHandler)
	case 3: // the answer is cut
		kept := httptest.NewRecorder()
		f.next.ServeHTTP(kept, r)
		for name, values := range kept.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(kept.Code)
		body := kept.Body.Bytes()
		_, _ = w.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	case 4: // slow
		time.Sleep(20 * time.Millisecond)
		fallthrough
	default:
		f.next.ServeHTTP(w, r)
	}
}

func (f *faults) all() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total
}

// With a third of all requests failing, what is written can be read, or the writer has an error and succeeds later.
func TestFaults(t *testing.T) {
	f := &faults{rate: 30, r: rand.New(rand.NewPCG(1, 2))}
	url := serveS3(t, func(h http.Handler) http.Handler { f.next = h; return f })
	s := open(t, url, newTestKey(t))
	here := localStore(t)
	base := newBase(t, here)
	file, m := layered(t, here, "one", base, 2)
	failed := 0
	until := func(what string, do func() error) {
		t.Helper()
		for n := 0; ; n++ {
			err := do()
			if err == nil {
				return
			}
			if failed++; n == 20 {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	until("push", func() error { _, err := s.Push(t.Context(), "vm", Push{File: file}); return err })
	var read *Manifest
	until("read", func() (err error) { read, err = s.Read(t.Context(), "vm"); return err })
	there := localStore(t)
	until("pull", func() error { return s.Pull(t.Context(), read, there, path(t, there, "copy")) })
	got := openFile(t, path(t, there, "copy"))
	if !bytes.Equal(contents(t, got), m) || !got.Own() {
		t.Error("the copy differs")
	}
	for f.all() < 3*len(f.n) {
		until("prune", func() error { _, err := s.Prune(t.Context(), false); return err })
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Logf("faults %v, calls that failed %d", f.n, failed)
}

// A writer that is killed after any request leaves nothing that hurts, and the next one completes its work.
func TestKilledAtEachStep(t *testing.T) {
	here := localStore(t)
	base := newBase(t, here)
	file, m := layered(t, here, "one", base, 2)
	for step := 1; ; step++ {
		var requests, limit atomic.Int64
		limit.Store(int64(step))
		url := serveS3(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n, limit := requests.Add(1), limit.Load(); limit > 0 && n > limit {
					w.WriteHeader(http.StatusForbidden) // which is not repeated
					return
				}
				h.ServeHTTP(w, r)
			})
		})
		_, err := open(t, url, nil).Push(t.Context(), "vm", Push{File: file})
		if err == nil {
			if step < 5 {
				t.Errorf("it took %d requests only", step)
			}
			return
		}
		limit.Store(0) // the next one is not killed
		s := open(t, url, nil)
		if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
			t.Fatalf("killed after %d requests: %d snapshots, %v", step, len(list), err)
		}
		if _, err := s.Push(t.Context(), "vm", Push{File: file}); err != nil {
			t.Fatalf("killed after %d requests: %v", step, err)
		}
		there := localStore(t)
		read, err := s.Read(t.Context(), "vm")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Pull(t.Context(), read, there, path(t, there, "copy")); err != nil {
			t.Fatalf("killed after %d requests: %v", step, err)
		}
		got := openFile(t, path(t, there, "copy"))
		if !bytes.Equal(contents(t, got), m) {
			t.Fatalf("killed after %d requests: the copy differs", step)
		}
	}
}
