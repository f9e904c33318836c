package netstack

import (
	"container/list"
	"sync"
)

// maxOrphans is how many connections may wait for the guest's last acknowledgement after our side has closed them. The
// oldest is reset when there are more: a guest that never acknowledges would otherwise choose how much we remember.
const maxOrphans = 256

// flowTable are the connections that have not ended.
type flowTable struct {
	mu      sync.Mutex
	closed  bool
	conns   map[*Conn]*list.Element // of orphans; nil: the connection has an owner
	orphans list.List               // of *Conn, oldest first
}

// add fails when the network is closed.
func (t *flowTable) add(c *Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if t.conns == nil {
		t.conns = make(map[*Conn]*list.Element)
	}
	t.conns[c] = nil
	return true
}

func (t *flowTable) remove(c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.conns[c]; e != nil {
		t.orphans.Remove(e)
	}
	delete(t.conns, c)
}

// orphan notes that c has no owner any more.
func (t *flowTable) orphan(c *Conn) {
	if oldest := t.appendOrphan(c); oldest != nil {
		oldest.endpoint.Abort()
		oldest.noteEnd()
	}
}

// appendOrphan returns the connection that has to go for c, if any.
func (t *flowTable) appendOrphan(c *Conn) *Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, there := t.conns[c]; !there || e != nil {
		return nil
	}
	t.conns[c] = t.orphans.PushBack(c)
	if t.orphans.Len() <= maxOrphans {
		return nil
	}
	return t.orphans.Front().Value.(*Conn)
}

// abortAll resets every connection; none is added afterwards.
func (t *flowTable) abortAll() {
	t.mu.Lock()
	t.closed = true
	conns := make([]*Conn, 0, len(t.conns))
	for c := range t.conns {
		conns = append(conns, c)
	}
	t.mu.Unlock()
	for _, c := range conns {
		c.Abort()
	}
}

// size is how many connections there are.
func (t *flowTable) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}
