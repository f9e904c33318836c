// Package refcount shares values of one process between users, by a key. A value lives from its first user's start to its last user's
// end. All functions may be called from several goroutines.
package refcount

import "sync"

// Map has the values that are in use.
type Map[V any] struct {
	Free func(V) // frees a value whose last user has gone; called without the lock

	mu      sync.Mutex
	entries map[string]*entry[V]
}

type entry[V any] struct {
	of    *Map[V]
	key   string
	users int           // guarded by of.mu
	ready chan struct{} // closed when value and err are set
	value V
	err   error
}

// Ref is a user's reference to a value. Each user has one and releases it.
type Ref[V any] struct {
	Value V

	entry *entry[V]
	once  sync.Once
}

// Acquire returns a reference to the value of a key. Without users, create makes the value; concurrent callers wait for that and share its
// error.
func (m *Map[V]) Acquire(key string, create func() (V, error)) (*Ref[V], error) {
	m.mu.Lock()
	e, found := m.entries[key]
	if !found {
		e = &entry[V]{of: m, key: key, ready: make(chan struct{})}
		if m.entries == nil {
			m.entries = map[string]*entry[V]{}
		}
		m.entries[key] = e
	}
	e.users++
	m.mu.Unlock()
	if !found {
		func() {
			defer close(e.ready)
			e.value, e.err = create()
		}()
	}
	<-e.ready
	r := &Ref[V]{Value: e.value, entry: e}
	if e.err != nil {
		r.Release()
		return nil, e.err
	}
	return r, nil
}

// Len returns how many keys have a value in use.
func (m *Map[V]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// Retain returns another reference. It must be called before r is released.
func (r *Ref[V]) Retain() *Ref[V] {
	r.entry.of.mu.Lock()
	defer r.entry.of.mu.Unlock()
	r.entry.users++
	return &Ref[V]{Value: r.Value, entry: r.entry}
}

// Forget has Acquire make a new value for the next user.
func (r *Ref[V]) Forget() {
	e := r.entry
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	if e.of.entries[e.key] == e {
		delete(e.of.entries, e.key)
	}
}

// Release gives up the reference; the last one frees the value. Calling it twice, or on nil, does no harm.
func (r *Ref[V]) Release() {
	if r != nil {
		r.once.Do(r.entry.release)
	}
}

func (e *entry[V]) release() {
	e.of.mu.Lock()
	e.users--
	last := e.users == 0
	if last && e.of.entries[e.key] == e {
		delete(e.of.entries, e.key)
	}
	e.of.mu.Unlock()
	if last && e.err == nil {
		e.of.Free(e.value)
	}
}
