package dns

import (
	"container/list"
	"sync"
	"time"
)

// entryCost estimates what an entry takes besides its bytes: the list's element, the map's slot, the structs.
const entryCost = 256

// cache keeps results until they expire, the recently used ones when there is no room for all.
type cache struct {
	maxEntries, maxBytes int // 0 entries: nothing is kept

	mu      sync.Mutex
	entries map[key]*list.Element
	order   *list.List // of *entry, the last used first
	bytes   int
}

type entry struct {
	key    key
	result *result
}

func (e *entry) size() int { return len(e.key.name) + len(e.result.packed) + entryCost }

func newCache(entries int) *cache {
	entries = max(entries, 0)
	return &cache{maxEntries: entries, maxBytes: entries * 1024, entries: map[key]*list.Element{}, order: list.New()}
}

// get returns nil when there is no result, or when it has expired.
func (c *cache) get(k key, now time.Time) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.entries[k]
	if !ok {
		return nil
	}
	r := element.Value.(*entry).result
	if !now.Before(r.expires) {
		c.remove(element)
		return nil
	}
	c.order.MoveToFront(element)
	return r
}

// put keeps a result. One with a TTL of 0 is for those who wait for it only.
func (c *cache) put(k key, r *result) {
	e := &entry{k, r}
	if e.size() > c.maxBytes || !r.fetched.Before(r.expires) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if element, ok := c.entries[k]; ok {
		c.remove(element)
	}
	c.entries[k] = c.order.PushFront(e)
	c.bytes += e.size()
	for c.bytes > c.maxBytes || len(c.entries) > c.maxEntries {
		c.remove(c.order.Back())
	}
}

// remove is called with mu held.
func (c *cache) remove(element *list.Element) {
	e := c.order.Remove(element).(*entry)
	delete(c.entries, e.key)
	c.bytes -= e.size()
}
