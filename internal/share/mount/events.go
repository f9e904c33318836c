package mount

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/internal/host/errno"
)

// hostEvents has the guest learn what others change in the directories that it knows: programs of the host, and other guests. The host's
// system reports names (Watcher); a moment later a session looks at what is there, leaves out what its own guest has done, and answers the
// guest's FUSE_HOST_EVENTS, of which one is waiting. What the guest's kernel keeps of the name expires then, so that it may keep names and
// attributes in watched directories for watchedTime, and programs that watch the directory have their events (inotify).
//
//	Watcher ──► pending, by directory and name ──► look: what is there? whose change was it? ──► reply
//
// Everything is bounded: maxWatches directories (the rest is valid for validTime and not reported), maxPending names, beyond which the guest
// asks again for all names of the directory.
type hostEvents struct {
	session *session
	count   atomic.Int64  // of directories that are watched
	wake    chan struct{} // has one when there may be something to deliver
	ended   chan struct{} // closed by close
	done    sync.WaitGroup

	sending sync.Mutex // a reply is being made; before names

	mu      sync.Mutex // after names and nodes
	nodes   map[watchID]*node
	pending map[eventKey]hostChange
	order   []eventKey          // of pending
	expired map[uint64]struct{} // numbers of directories of which nothing is known any more
	own     map[eventKey]ownChange
	asked   uint64 // the request that waits for events
	waiting bool   // there is one
	off     bool   // the guest wants no more
}

const (
	// watchedTime is how long the guest may use names and attributes in a watched directory. What the host's system does not report (what a
	// program writes through a mapping) is seen by stat after this time; by open at once.
	watchedTime = time.Minute
	// maxWatches bounds the directories that a session watches. The system's own limit is for all programs of the user: see MaxWatches.
	maxWatches = 8192
	maxPending = 4096
	maxOwn     = 4096
	// eventDelay is how long changes are collected before the guest learns of them.
	eventDelay = 10 * time.Millisecond
	// maxEvents is how much fits into the guest's buffer, in bytes.
	maxEvents = 4096
)

type watchID int32

// eventKey is a name in a watched directory; "" is the directory itself.
type eventKey struct {
	watch watchID
	name  string
}

// hostChange is what the host's system has reported of a name.
type hostChange struct{ mask, cookie uint32 }

// ownChange is what this session's guest has made or removed under a name, so that it need not hear of it.
type ownChange struct {
	mask uint32   // eventMade, eventRemoved
	file identity // that was made
	busy bool     // the call is under way
}

// Events, as Linux's inotify numbers them.
const (
	eventModify     = 0x2
	eventAttrib     = 0x4
	eventCloseWrite = 0x8
	eventMovedFrom  = 0x40
	eventMovedTo    = 0x80
	eventCreate     = 0x100
	eventDelete     = 0x200
	eventDeleteSelf = 0x400
	eventMoveSelf   = 0x800
	eventUnmount    = 0x2000
	eventOverflow   = 0x4000
	eventIgnored    = 0x8000
	eventIsDir      = 0x40000000

	eventMade    = eventCreate | eventMovedTo
	eventRemoved = eventDelete | eventMovedFrom
	eventContent = eventModify | eventAttrib | eventCloseWrite
)

// What expires in the guest, of a record of FUSE_HOST_EVENTS's reply.
const (
	expireName = 1 << iota
	expireChild
	expireParent
	expireChildren
)

// newHostEvents returns nil where the host's system does not report changes.
func newHostEvents(c *session) *hostEvents {
	e := &hostEvents{
		session: c, wake: make(chan struct{}, 1), ended: make(chan struct{}), nodes: make(map[watchID]*node), pending: make(map[eventKey]hostChange),
		expired: make(map[uint64]struct{}), own: make(map[eventKey]ownChange),
	}
	if err := c.server.config.Watcher.join(e, c.server.dir); err != nil {
		return nil
	}
	e.done.Go(e.run)
	return e
}

func (e *hostEvents) close() {
	close(e.ended)
	e.session.server.config.Watcher.leave(e)
	e.done.Wait()
	e.mu.Lock()
	clear(e.nodes) // what the watcher notes at this moment gives no watch back
	e.mu.Unlock()
	e.session.server.config.Watches.Give(e.count.Swap(0))
}

// MaxWatches is how many directories a process may watch: no more than an eighth of what all programs of its user may.
func MaxWatches() int64 { return maxUserWatches() / 8 }

// wakeUp has run look whether there is something to deliver.
func (e *hostEvents) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run delivers what the watcher has noted until close.
func (e *hostEvents) run() {
	for {
		select {
		case <-e.wake:
			e.deliverAll()
		case <-e.ended:
			return
		}
	}
}

func (e *hostEvents) open() bool {
	select {
	case <-e.ended:
		return false
	default:
		return true
	}
}

// reserve takes the place of one watch.
func (e *hostEvents) reserve() bool {
	if e.count.Add(1) <= maxWatches && e.session.server.config.Watches.Take(1) {
		return true
	}
	e.count.Add(-1)
	return false
}

func (e *hostEvents) unreserve() {
	e.count.Add(-1)
	e.session.server.config.Watches.Give(1)
}

// deliverAll delivers as long as the guest asks. What comes from the host's system meanwhile is pending.
func (e *hostEvents) deliverAll() {
	for e.left() && e.open() {
		e.deliver()
		if e.left() { // the guest is changing something just now
			time.Sleep(eventDelay)
		}
	}
}

// left says whether there is something to deliver, and to whom.
func (e *hostEvents) left() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.waiting && len(e.order)+len(e.expired) > 0
}

// note collects an event of the host's system.
func (e *hostEvents) note(id watchID, mask, cookie uint32, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.nodes[id]
	switch {
	case mask&eventOverflow != 0:
		for _, n := range e.nodes {
			e.expired[n.id] = struct{}{}
		}
		clear(e.own)
		return
	case n == nil:
		return
	case mask&(eventIgnored|eventUnmount|eventMoveSelf|eventDeleteSelf) != 0:
		// The name will be looked up again, and the directory watched, if it is still there.
		e.dropLocked(n, id)
		return
	}
	key := eventKey{id, name}
	change, known := e.pending[key]
	if !known {
		if len(e.pending) >= maxPending {
			e.expired[n.id] = struct{}{}
			return
		}
		e.order = append(e.order, key)
	}
	change.mask |= mask
	if cookie != 0 {
		change.cookie = cookie
	}
	e.pending[key] = change
}

// watch has the directory of a node watched, and says whether it has been for some time. names must be held.
func (e *hostEvents) watch(n *node, path string) (already bool) {
	if e == nil || !n.dir.Load() {
		return false
	}
	if n.watch.Load() != 0 {
		return n.watched()
	}
	if !e.reserve() {
		n.watch.Store(unwatchable)
		return false
	}
	id, err := e.session.server.watchDir(e, path, n.file)
	if err != nil {
		e.unreserve()
		n.watch.Store(unwatchable)
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if other := e.nodes[id]; other != nil && other != n { // the same directory by another name
		e.unreserve()
		other.watch.Store(unwatchable)
		e.expired[other.id] = struct{}{}
	}
	e.nodes[id] = n
	n.watch.Store(int32(id))
	return false
}

// unwatchable is the watch of a directory that has none, and gets none.
const unwatchable = -1

// forget ends the watch of a node that the guest has forgotten.
func (e *hostEvents) forget(n *node) {
	id := n.watch.Load()
	if e == nil || id <= 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.nodes[watchID(id)] == n {
		delete(e.nodes, watchID(id))
		e.session.server.config.Watcher.remove(e, watchID(id))
		e.unreserve()
	}
}

func (e *hostEvents) dropLocked(n *node, id watchID) {
	if e.nodes[id] != n {
		return
	}
	delete(e.nodes, id)
	n.watch.Store(0)
	e.session.server.config.Watcher.remove(e, id)
	e.unreserve()
	e.expired[n.id] = struct{}{}
}

// expect notes, before the call, what the guest is about to make or remove. end must be called, with what was made. names must be held.
func (e *hostEvents) expect(dir *node, name string, mask uint32) (end func(err error, made identity)) {
	if e == nil || !dir.watched() {
		return func(error, identity) {}
	}
	key := eventKey{watchID(dir.watch.Load()), name}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.own) >= maxOwn { // of events that did not come: the guest hears of some of its own changes
		clear(e.own)
	}
	before := e.own[key]
	e.own[key] = ownChange{mask: before.mask | mask, file: before.file, busy: true}
	return func(err error, made identity) {
		e.mu.Lock()
		defer e.mu.Unlock()
		own := e.own[key]
		own.busy = false
		switch {
		case err == nil && mask&eventMade != 0:
			own.file = made
		case err != nil && before.mask == 0:
			delete(e.own, key)
			return
		case err != nil:
			own.mask = before.mask
		}
		e.own[key] = own
	}
}

// ask answers FUSE_HOST_EVENTS, now or when there is something: see deliver.
func (e *hostEvents) ask(unique uint64) error {
	if e == nil {
		return errno.ENOSYS
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.off:
		return errno.ENODEV
	case e.waiting:
		return errno.EBUSY
	}
	e.asked, e.waiting = unique, true
	if len(e.order)+len(e.expired) > 0 {
		e.done.Go(func() {
			time.Sleep(eventDelay)
			e.deliverAll()
		})
	}
	return nil
}

// attributes has the guest ask for the attributes of a node again. names must be held.
func (e *hostEvents) attributes(n *node) {
	if e != nil && n.parent != nil && n.parent.watched() {
		e.note(watchID(n.parent.watch.Load()), eventAttrib, 0, n.name)
		e.done.Go(e.deliverAll)
	}
}

// stop ends the request that waits: the guest is about to unmount, and cannot before.
func (e *hostEvents) stop() {
	if e == nil {
		return
	}
	e.sending.Lock()
	defer e.sending.Unlock()
	e.mu.Lock()
	waiting, asked := e.waiting, e.asked
	e.off, e.waiting = true, false
	e.mu.Unlock()
	if waiting {
		e.reply(asked, nil, errno.ENODEV)
	}
}

func (e *hostEvents) reply(asked uint64, records []byte, number errno.Errno) {
	out := encoder{buf: make([]byte, replyHeader, replyHeader+len(records))}
	out.buf = append(out.buf, records...)
	out.header(number, asked)
	e.session.send(out.buf)
}

// deliver answers the request that waits, if there is something that the guest does not know.
func (e *hostEvents) deliver() {
	e.sending.Lock()
	defer e.sending.Unlock()
	if !e.left() {
		return
	}
	var records []byte
	for {
		e.mu.Lock()
		if len(e.expired) == 0 {
			e.mu.Unlock()
			break
		}
		id := slices.Collect(maps.Keys(e.expired))[0]
		record := appendRecord(nil, hostRecord{flags: expireChildren | expireParent, parent: id, child: id})
		if len(records)+len(record) > maxEvents {
			e.mu.Unlock()
			break
		}
		delete(e.expired, id)
		e.mu.Unlock()
		records = append(records, record...)
	}
	var later []eventKey
	for {
		e.mu.Lock()
		if len(e.order) == 0 {
			e.mu.Unlock()
			break
		}
		key := e.order[0]
		change, dir, own := e.pending[key], e.nodes[key.watch], e.own[key]
		e.order = e.order[1:]
		if own.busy {
			later = append(later, key)
			e.mu.Unlock()
			continue
		}
		delete(e.pending, key)
		e.takeOwn(key, own, change.mask)
		e.mu.Unlock()
		if dir == nil {
			continue
		}
		made, settled := e.look(dir, key.name, change, own)
		e.mu.Lock()
		if !settled || len(records)+len(made) > maxEvents {
			again := e.pending[key]
			again.mask, again.cookie = again.mask|change.mask, change.cookie
			e.pending[key] = again
			if newer := e.own[key]; own.mask != 0 {
				newer.mask |= own.mask
				if newer.file == (identity{}) {
					newer.file = own.file
				}
				e.own[key] = newer
			}
			later = append(later, key)
			e.mu.Unlock()
			if settled {
				break
			}
			continue
		}
		e.mu.Unlock()
		records = append(records, made...)
	}
	e.mu.Lock()
	for _, key := range later {
		if !slices.Contains(e.order, key) {
			e.order = append(e.order, key)
		}
	}
	asked := e.asked
	if len(records) > 0 {
		e.waiting = false
	}
	e.mu.Unlock()
	if len(records) > 0 {
		e.reply(asked, records, 0)
	}
}

// takeOwn forgets those of the guest's own changes of which the events have come.
func (e *hostEvents) takeOwn(key eventKey, own ownChange, came uint32) {
	for _, kind := range []uint32{eventMade, eventRemoved} {
		if came&kind != 0 {
			own.mask &^= kind
		}
	}
	if own.mask == 0 {
		delete(e.own, key)
		return
	}
	e.own[key] = own
}

// look makes records of what has changed under a name, or not settled: the guest is changing it just now.
func (e *hostEvents) look(dir *node, name string, change hostChange, own ownChange) (records []byte, settled bool) {
	c := e.session
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	if _, _, err := c.find(dir); err != nil { // it was moved, maybe out of the mount: its names are none of the guest's business
		return appendRecord(nil, hostRecord{flags: expireChildren | expireParent, parent: dir.id, child: dir.id}), true
	}
	isDir := change.mask & eventIsDir
	if name == "" {
		if change.mask&eventAttrib == 0 {
			return nil, true
		}
		_, a, err := c.find(dir)
		owned, settled := c.tree.isOwn(dir, a)
		if err != nil || owned {
			return nil, true
		}
		return appendRecord(nil, hostRecord{flags: expireParent, parent: dir.id, child: dir.id, self: eventAttrib}), settled
	}
	if checkName(name) != nil {
		return nil, true
	}
	path, err := c.seePath(dir, name)
	if err != nil {
		return nil, true
	}
	child := c.tree.lookup(dir, name)
	a, err := c.server.lstat(path)
	exists := err == nil
	same := exists && child != nil && c.tree.isStill(child, a)
	content := change.mask & eventContent
	if child != nil && !same {
		child.strayed.Store(true)
	}
	if same {
		owned, settled := c.tree.isOwn(child, a)
		if !settled {
			return nil, false
		}
		if owned {
			content = 0
		} else if content&eventCloseWrite != 0 && c.tree.ownClose(child) {
			content &^= eventCloseWrite
		}
	}
	made, removed := change.mask&eventMade, change.mask&eventRemoved
	switch {
	case own.mask&eventMade != 0 && exists && own.file == a.identity():
		made, removed = 0, removed&^eventRemoved // it is the guest's; what was there before it has replaced, or removed
	case own.mask != 0 && exists:
		removed &^= own.mask // the host has made another one
	case own.mask&eventRemoved != 0:
		made, removed = 0, 0
	case own.mask&eventMade != 0:
		made = 0
	}
	if made != 0 && exists && a.host.Links > 1 && !a.isDir() { // the host has given a file another name, of which the first has no event
		if id, parent := c.tree.otherName(child, a.identity()); id != 0 {
			records = appendRecord(records, hostRecord{flags: expireChild, parent: parent, child: id})
		}
	}
	if made|removed|content == 0 {
		return nil, true
	}
	r := hostRecord{parent: dir.id, name: name, cookie: change.cookie}
	if child != nil {
		r.child = child.id
	}
	gone := removed != 0 || made != 0 && !same
	switch {
	case !exists && removed == 0:
		return nil, true // it came and went
	case gone:
		r.flags = expireName | expireParent | expireChild
	default:
		r.flags = expireChild | expireName
	}
	if removed != 0 {
		r.mask = removed&-removed | isDir
		if child != nil && !same && len(c.tree.places(child)) == 1 {
			r.self = eventDeleteSelf
		}
		records = appendRecord(records, r)
		r.flags, r.self = 0, 0
	}
	if exists && made|content != 0 {
		r.mask = made&-made | content | isDir
		if !same {
			if child != nil && removed == 0 {
				r.self = eventDeleteSelf // it was replaced by a rename
				r.mask &^= eventContent
			} else {
				r.child = 0
			}
		}
		records = appendRecord(records, r)
	}
	return records, true
}

// hostRecord is one entry of the reply to FUSE_HOST_EVENTS.
type hostRecord struct {
	flags, mask, self, cookie uint32
	parent, child             uint64
	name                      string
}

// appendRecord appends len[4] flags[4] parent[8] child[8] mask[4] self_mask[4] cookie[4] padding[4] name\0, padded to 8 bytes.
func appendRecord(to []byte, r hostRecord) []byte {
	start := len(to)
	out := encoder{buf: to}
	out.u32(0)
	out.u32(r.flags)
	out.u64(r.parent)
	out.u64(r.child)
	out.u32(r.mask)
	out.u32(r.self)
	out.u32(r.cookie)
	out.u32(0)
	out.buf = append(append(out.buf, r.name...), 0)
	out.buf = append(out.buf, make([]byte, -len(out.buf)&7)...)
	binary.LittleEndian.PutUint32(out.buf[start:], uint32(len(out.buf)-start))
	return out.buf
}
