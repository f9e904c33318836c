package vm

import "sync"

// shared has values that the VMs of one process share by a key. A value lives from its first user's start to its last user's end.
type shared[V any] struct {
	free func(V) // called without the lock

	mu      sync.Mutex
	entries map[string]*sharedEntry[V]
}

// sharedEntry is a value in use. Each user releases it once.
type sharedEntry[V any] struct {
	of    *shared[V]
	key   string
	users int           // guarded by of.mu
	ready chan struct{} // closed when value and err are set
	value V
	err   error
}

// acquire returns the value of a key. Without users make makes it; concurrent callers wait for the result and share its error.
func (s *shared[V]) acquire(key string, make func() (V, error)) (*sharedEntry[V], error) {
	s.mu.Lock()
	e, found := s.entries[key]
	if !found {
		e = s.enter(key)
	}
	e.users++
	s.mu.Unlock()
	if !found {
		func() {
			defer close(e.ready)
			e.value, e.err = make()
		}()
	}
	<-e.ready
	if e.err != nil {
		e.release()
		return nil, e.err
	}
	return e, nil
}

// enter adds an entry that is not ready. The caller holds mu.
func (s *shared[V]) enter(key string) *sharedEntry[V] {
	e := &sharedEntry[V]{of: s, key: key, ready: make(chan struct{})}
	if s.entries == nil {
		s.entries = make(map[string]*sharedEntry[V])
	}
	s.entries[key] = e
	return e
}

// retain adds a user. There must be one.
func (e *sharedEntry[V]) retain() *sharedEntry[V] {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	e.users++
	return e
}

// forget has acquire make a new value for the next user.
func (e *sharedEntry[V]) forget() {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	if e.of.entries[e.key] == e {
		delete(e.of.entries, e.key)
	}
}

// release removes a user; the last one frees the value.
func (e *sharedEntry[V]) release() {
	e.of.mu.Lock()
	e.users--
	last := e.users == 0
	if last && e.of.entries[e.key] == e {
		delete(e.of.entries, e.key)
	}
	e.of.mu.Unlock()
	if last && e.err == nil {
		e.of.free(e.value)
	}
}
