package mount

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"agentvm/internal/host/budget"
	"agentvm/internal/host/errno"
)

const (
	// maxRequests is how many requests of a session run at once beside its loop. When all run, the session stops reading, which
	// pushes back on the guest; none of them waits for another message, so they always finish.
	maxRequests = 16
	// smallBuffer holds most requests and replies; larger ones take a buffer of maxMessage.
	smallBuffer = 4096 + 128
	// maxMessage bounds a message: maxData and what goes with it.
	maxMessage = maxData + 4096
)

var errFrame = errors.New("message length out of range")

// session is one connection: the loop that reads frames, and what its requests share.
//
//	loop: frame ──► FUSE_INIT, FUSE_DESTROY: wait for all requests, reset, reply
//	            ├─► quick operations: answered in the loop
//	            └─► anything else: its own goroutine, at most maxRequests ──► reply
//
// Before the loop hears of it, a request that needs no wait is answered in the guest's call, see serveDirect.
type session struct {
	server *Server
	conn   io.ReadWriteCloser
	in     *bufio.Reader

	small, big sync.Pool // of *[]byte
	slots      chan struct{}
	running    sync.WaitGroup
	sendMu     sync.Mutex
	turn       sync.Mutex // held by the loop, unless it waits for the next frame, and by serveDirect

	tree    *tree
	handles *handleTable
	files   *openFiles
	memory  sessionMemory
	events  *hostEvents // nil: the guest learns of nothing
	hostDir bool        // the guest's kernel is agentvm's
	replies bool        // to locks have flags
	locks   lockWaits
	ranges  rangeLocks
}

// request is one message and its reply.
type request struct {
	op     uint32
	unique uint64
	node   *node // of the header; held until the reply is sent
	frame  *[]byte
	in     decoder
	out    encoder
	reply  *[]byte
	handle *handle // held while the request runs
	parked bool    // the reply comes later
}

func newSession(s *Server, conn io.ReadWriteCloser) *session {
	c := &session{
		server: s,
		conn:   conn,
		in:     bufio.NewReaderSize(conn, 64<<10),
		slots:  make(chan struct{}, maxRequests),
	}
	c.memory.budget = s.config.Memory
	c.small.New = func() any { b := make([]byte, smallBuffer); return &b }
	c.big.New = func() any { b := make([]byte, maxMessage); return &b }
	c.reset()
	return c
}

// reset forgets all nodes and open files, as a new FUSE_INIT demands. No request may be running.
func (c *session) reset() {
	if c.events != nil {
		c.events.close()
		c.events = nil
	}
	if c.handles != nil {
		c.handles.closeAll(c)
		c.tree.end()
	}
	first := c.server.firstNumber()
	c.tree = newTree(first, c.server.config.MaxNodes, &c.memory)
	c.tree.byName = c.server.config.Bases
	c.files = &openFiles{limit: int64(c.server.config.MaxOpen), process: c.server.config.Descriptors}
	c.handles = newHandleTable(first)
}

// run serves until the connection ends and returns why; io.EOF between two messages is an orderly end.
func (c *session) run() error {
	c.turn.Lock() // for ever: what comes after the loop's end is not served
	if conn, ok := c.conn.(directConn); ok {
		conn.Direct(smallBuffer, c.serveDirect)
		defer conn.Direct(0, nil)
	}
	err := c.loop()
	c.conn.Close() // frees requests that wait to send
	c.locks.interruptAll()
	c.running.Wait()
	c.reset()
	c.memory.end()
	return err
}

// loop reads requests until the connection fails or the guest breaks a rule that leaves no way to answer.
func (c *session) loop() error {
	for {
		q, err := c.receive()
		if err != nil {
			return err
		}
		switch {
		case q.op == opInit || q.op == opDestroy:
			c.locks.interruptAll()
			c.running.Wait()
			c.answer(q)
		case q.op == opSetlkw && c.locks.begin(q.unique):
			c.running.Go(func() {
				defer c.locks.end(q.unique)
				c.answer(q)
			})
		case q.op < uint32(len(operations)) && operations[q.op].quick:
			c.answer(q)
		default:
			c.slots <- struct{}{}
			c.running.Go(func() {
				defer func() { <-c.slots }()
				c.answer(q)
			})
		}
	}
}

// receive reads one frame. A length out of range ends the session, because the bytes after it cannot be distinguished any more.
func (c *session) receive() (*request, error) {
	if c.in.Buffered() == 0 {
		c.turn.Unlock()
		_, err := c.in.Peek(1)
		c.turn.Lock()
		if err != nil {
			return nil, err
		}
	}
	var header [requestHeader]byte
	if _, err := io.ReadFull(c.in, header[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(header[:])
	if n < requestHeader || n > maxMessage {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", errFrame, n, maxMessage)
	}
	n -= requestHeader
	frame := c.buffer(int(n))
	body := (*frame)[:n]
	if _, err := io.ReadFull(c.in, body); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	q := c.request(header[:], body)
	q.frame = frame
	return q, nil
}

// request makes a request of a frame's header and the rest.
func (c *session) request(header, body []byte) *request {
	q := &request{op: binary.LittleEndian.Uint32(header[4:]), unique: binary.LittleEndian.Uint64(header[8:])}
	q.in.rest = body
	q.node, _ = c.tree.get(binary.LittleEndian.Uint64(header[16:])) // nil where there is none
	return q
}

// answer runs a request and sends its reply. A failed send shows up as a failed receive.
func (c *session) answer(q *request) { c.answerBy(q, c.send) }

func (c *session) answerBy(q *request, send func(message []byte)) {
	c.reserve(q, smallBuffer)
	err := c.handle(q)
	if q.handle != nil { // before the reply, which lets the guest close the file: it is closed then
		c.handles.put(c, q.handle)
	}
	if !q.silent() {
		var number errno.Errno
		if err != nil {
			number = c.server.toErrno(err)
			q.out.buf = q.out.buf[:replyHeader]
		}
		q.out.header(number, q.unique)
		send(q.out.buf)
	}
	c.end(q)
}

// end gives back what a request holds.
func (c *session) end(q *request) {
	if q.node != nil {
		c.tree.release(q.node)
	}
	for _, b := range []*[]byte{q.frame, q.reply} {
		if b != nil {
			c.release(b)
		}
	}
}

// silent says that there is no reply, or that hostEvents sends it.
func (q *request) silent() bool {
	return q.op == opForget || q.op == opBatchForget || q.op == opInterrupt || q.parked
}

// handle runs the operation. A panic is a bug of ours, never the guest's right: it costs this request, not the host.
func (c *session) handle(q *request) (err error) {
	defer func() {
		if r := recover(); r != nil {
			c.server.log.Error("mount: request panicked", "opcode", q.op, "panic", r, "stack", string(debug.Stack()))
			err = errno.EIO
		}
	}()
	if q.op == opHostEvents {
		err := c.events.ask(q.unique)
		q.parked = err == nil
		return err
	}
	if q.op >= uint32(len(operations)) || operations[q.op].run == nil {
		return errno.ENOSYS
	}
	op := operations[q.op]
	switch {
	case q.node == nil && !op.noNode:
		return errno.ESTALE
	case op.mutates && c.server.config.ReadOnly:
		return errno.EROFS
	}
	return op.run(c, q)
}

// send sends one message. After a failure the connection is useless, and the loop must hear of it.
func (c *session) send(message []byte) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if _, err := c.conn.Write(message); err != nil {
		c.conn.Close()
	}
}

// Versions and flags of FUSE_INIT.
const (
	protocolMajor, protocolMinor = 7, 31

	flagAsyncRead       = 1 << 0
	flagRangeLocks      = 1 << 1 // so are fcntl(2) locks
	flagAtomicTruncate  = 1 << 3
	flagBigWrites       = 1 << 5
	flagFileLocks       = 1 << 10 // flock(2) locks are asked for; only a kernel that sends FUSE_INTERRUPT can wait for one
	flagAutoInvalidate  = 1 << 12
	flagReaddirplus     = 1 << 13
	flagReaddirplusAuto = 1 << 14
	flagParallelDirops  = 1 << 18
	flagMaxPages        = 1 << 22
	flagKillPrivileges  = 1 << 28 // FUSE_HANDLE_KILLPRIV_V2: set-uid bits are never shown nor set, so no write asks for what to drop
	flagExtended        = 1 << 30 // there are more flags, the upper half
	flagHostDir         = 1 << 31 // of the upper half: the guest's kernel asks for host events, and only for attributes user.*
	flagHostLocks       = 1 << 30 // of the upper half: it flushes only files that fcntl(2) has locked, and takes flags with a lock

	serverFlags = flagKillPrivileges | flagExtended | flagAsyncRead | flagAtomicTruncate | flagBigWrites | flagAutoInvalidate | flagReaddirplus | flagReaddirplusAuto |
		flagParallelDirops | flagMaxPages
)

// flags are those of this session. Locks of a mount that the guest cannot change stay in the guest, whose programs could keep the host's waiting.
func (c *session) flags() uint32 {
	switch {
	case !c.hostDir || !hostLocks || c.server.config.ReadOnly:
		return serverFlags
	case !c.replies: // each close would be a request
		return serverFlags | flagFileLocks
	}
	return serverFlags | flagFileLocks | flagRangeLocks
}

// init answers FUSE_INIT: major[4] minor[4] max_readahead[4] flags[4], and more.
func (c *session) init(q *request) error {
	major, minor, readahead, flags := q.in.u32(), q.in.u32(), q.in.u32(), q.in.u32()
	var upper uint32
	if flags&flagExtended != 0 && len(q.in.rest) >= 4 {
		upper = q.in.u32() & (flagHostDir | flagHostLocks)
	}
	q.in.take(len(q.in.rest)) // of later versions
	if err := q.in.end(); err != nil {
		return err
	}
	if major != protocolMajor || minor < protocolMinor {
		return errno.EPROTO
	}
	if q.node != nil { // the header has none, as Linux sends it
		c.tree.release(q.node)
		q.node = nil
	}
	c.reset()
	c.replies = upper&flagHostLocks != 0
	if c.hostDir = upper&flagHostDir != 0; c.hostDir {
		c.startEvents()
	}
	q.out.u32(protocolMajor)
	q.out.u32(protocolMinor)
	q.out.u32(min(readahead, maxData))
	q.out.u32(flags & c.flags())
	q.out.u16(maxRequests)                              // in the background
	q.out.u16(maxRequests)                              // congestion threshold
	q.out.u32(maxData)                                  // max_write
	q.out.u32(1)                                        // granularity of times, in nanoseconds
	q.out.u16(maxData / 4096)                           // max_pages
	q.out.u16(0)                                        // map_alignment
	q.out.u32(upper)                                    // the upper half of the flags
	q.out.buf = append(q.out.buf, make([]byte, 4*7)...) // unused
	return nil
}

// startEvents begins to report to the guest what the host changes. What an overlay has found it keeps, and has its own inodes.
func (c *session) startEvents() {
	if c.server.config.Bases {
		return
	}
	if c.events = newHostEvents(c); c.events != nil {
		c.tree.forgotten = c.events.forget
		c.tree.names.RLock()
		defer c.tree.names.RUnlock()
		c.events.watch(c.tree.root, ".")
	}
}

// interrupt: unique[8]; 0 is about FUSE_HOST_EVENTS.
func (c *session) interrupt(q *request) error {
	unique := q.in.u64()
	if err := q.in.end(); err != nil {
		return err
	}
	if unique == 0 {
		c.events.stop()
	} else {
		c.locks.interrupt(unique)
	}
	return nil
}

// destroy answers FUSE_DESTROY: the guest has unmounted.
func (c *session) destroy(q *request) error {
	if q.node != nil {
		c.tree.release(q.node)
		q.node = nil
	}
	c.reset()
	return nil
}

// forget: nlookup[8].
func (c *session) forget(q *request) error {
	count := q.in.u64()
	if err := q.in.end(); err != nil || q.node == nil {
		return err
	}
	c.tree.forget(q.node.id, count)
	return nil
}

// batchForget: count[4] dummy[4], and for each nodeid[8] nlookup[8].
func (c *session) batchForget(q *request) error {
	count := q.in.u32()
	q.in.u32()
	for range count {
		id, n := q.in.u64(), q.in.u64()
		if q.in.bad {
			break
		}
		c.tree.forget(id, n)
	}
	return q.in.end()
}

// buffer returns at least n bytes, n being at most maxMessage.
func (c *session) buffer(n int) *[]byte {
	if n <= smallBuffer {
		return c.small.Get().(*[]byte)
	}
	c.memory.charge(maxMessage)
	return c.big.Get().(*[]byte)
}

// release gives a buffer back.
func (c *session) release(b *[]byte) {
	if len(*b) == smallBuffer {
		c.small.Put(b)
		return
	}
	c.memory.give(maxMessage)
	c.big.Put(b)
}

// reserve makes room for a reply of n bytes, header included.
func (c *session) reserve(q *request, n int) {
	if q.reply != nil {
		c.release(q.reply)
	}
	q.reply = c.buffer(n)
	q.out.buf = (*q.reply)[:replyHeader]
}

// operation answers one type of message.
type operation struct {
	run func(*session, *request) error
	// mutates marks those that a read-only share refuses as a whole; open looks at its flags itself.
	mutates bool
	// quick ones run in the session's loop: they move no data and come by the thousands, one after the other, so that
	// handing them to another goroutine would cost more than it gains.
	quick bool
	// noNode ones are about no node.
	noNode bool
}

// operations is indexed by opcode. What is missing gets ENOSYS, which has Linux settle it by itself, and ask no more.
var operations = [maxOp + 1]operation{
	opLookup:      {run: (*session).lookup, quick: true},
	opForget:      {run: (*session).forget, quick: true, noNode: true},
	opGetattr:     {run: (*session).getattr, quick: true},
	opSetattr:     {run: (*session).setattr, mutates: true},
	opReadlink:    {run: (*session).readlink, quick: true},
	opSymlink:     {run: (*session).symlink, mutates: true},
	opMknod:       {run: (*session).mknod, mutates: true},
	opMkdir:       {run: (*session).mkdir, mutates: true},
	opUnlink:      {run: (*session).unlinkFile, mutates: true, quick: true},
	opRmdir:       {run: (*session).unlinkDir, mutates: true, quick: true},
	opRename:      {run: (*session).rename, mutates: true},
	opLink:        {run: (*session).link, mutates: true},
	opOpen:        {run: (*session).open, quick: true},
	opRead:        {run: (*session).read},
	opWrite:       {run: (*session).write, mutates: true},
	opStatfs:      {run: (*session).statfs},
	opRelease:     {run: (*session).releaseFile, quick: true},
	opFsync:       {run: (*session).fsync},
	opSetxattr:    {run: (*session).setxattr, mutates: true},
	opGetxattr:    {run: (*session).getxattr, quick: true},
	opListxattr:   {run: (*session).listxattr, quick: true},
	opRemovexattr: {run: (*session).removexattr, mutates: true},
	opInit:        {run: (*session).init, noNode: true},
	opOpendir:     {run: (*session).opendir, quick: true},
	opReaddir:     {run: (*session).readdir},
	opReleasedir:  {run: (*session).releaseFile, quick: true},
	opFsyncdir:    {run: (*session).fsync},
	opCreate:      {run: (*session).create, mutates: true, quick: true},
	opFlush:       {run: (*session).flush, quick: true},
	opGetlk:       {run: (*session).testLock, quick: true},
	opSetlk:       {run: (*session).lock, quick: true},
	opSetlkw:      {run: (*session).lock},
	opInterrupt:   {run: (*session).interrupt, quick: true, noNode: true},
	opDestroy:     {run: (*session).destroy, noNode: true},
	opBatchForget: {run: (*session).batchForget, quick: true, noNode: true},
	opReaddirplus: {run: (*session).readdir},
}

// nodeMemory is about what a node costs in bytes: itself, its name, and its places in two tables.
const nodeMemory = 512

// sessionMemory is what one session has of the budget.
type sessionMemory struct {
	budget *budget.Budget
	held   atomic.Int64
}

// take takes bytes if there are so many.
func (m *sessionMemory) take(bytes int64) bool {
	if !m.budget.Take(bytes) {
		return false
	}
	m.held.Add(bytes)
	return true
}

// charge takes bytes that have a bound of their own.
func (m *sessionMemory) charge(bytes int64) {
	m.budget.Charge(bytes)
	m.held.Add(bytes)
}

func (m *sessionMemory) give(bytes int64) {
	m.budget.Give(bytes)
	m.held.Add(-bytes)
}

// end gives back what is left: of messages that were under way when the session ended.
func (m *sessionMemory) end() { m.give(m.held.Load()) }

// toErrno translates an error of the host to the number that a reply carries. What the host cannot name is an I/O error.
func (s *Server) toErrno(err error) errno.Errno {
	if number := errno.In(err); number != 0 {
		return number
	}
	switch {
	case errors.Is(err, s.escapes):
		// Only a link that was swapped in during the call gets here: an ordinary one ends the walk.
		return errno.EACCES
	case errors.Is(err, os.ErrClosed):
		return errno.EBADF
	case errors.Is(err, fs.ErrNotExist):
		return errno.ENOENT
	case errors.Is(err, fs.ErrExist):
		return errno.EEXIST
	case errors.Is(err, fs.ErrPermission):
		return errno.EACCES
	case errors.Is(err, fs.ErrInvalid):
		return errno.EINVAL
	case errors.Is(err, errors.ErrUnsupported):
		return errno.EOPNOTSUPP
	}
	return errno.EIO
}
