package httpserver

import "sync"

// Places bounds the requests that are answered at once. A client may take as many places as it leaves free: one whose requests all
// hang gets half of them, two such clients get a third each, and there is always a place for another.
type Places struct {
	mu   sync.Mutex
	free int
	used map[string]int // by client
}

// NewPlaces returns n places, all free.
func NewPlaces(n int) *Places { return &Places{free: n, used: make(map[string]int)} }

// Take takes a place for a client, and reports whether there was one. Leave gives it back.
func (p *Places) Take(client string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 || p.used[client] > p.free {
		return false
	}
	p.free--
	p.used[client]++
	return true
}

// Leave gives back a place that Take has taken for the client.
func (p *Places) Leave(client string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
	if p.used[client]--; p.used[client] == 0 {
		delete(p.used, client)
	}
}
