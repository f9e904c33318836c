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
	"strings"
	"sync"
	"sync/atomic"

	"agentvm/internal/budget"
	"agentvm/internal/errno"
)

const (
	// maxRequests is how many requests of a session run at once. When all run, the session stops reading, which
	// pushes back on the guest; none of them waits for another message, so they always finish.
	maxRequests = 16
	// minMessage is the smallest msize with room for any reply but data: a link target of PATH_MAX bytes.
	minMessage = 4096 + 512
	// firstMessage limits messages until Tversion has agreed on a size.
	firstMessage = 8192
	// smallBuffer holds most requests and replies; larger ones take an msize buffer.
	smallBuffer = 1024
)

var (
	errFrame    = errors.New("message length out of range")
	errTagInUse = errors.New("tag used again before its reply")
)

// session is one connection: the loop that reads frames, and what its requests share.
//
//	loop: frame ──► Tversion: wait for all requests, reset, reply
//	            ├─► Tflush: reply now, or after the reply to the flushed request
//	            ├─► quick operations: answered in the loop
//	            └─► anything else: its own goroutine, at most maxRequests ──► reply
type session struct {
	server *Server
	conn   io.ReadWriteCloser
	in     *bufio.Reader

	msize      uint32 // set by Tversion while no request runs
	negotiated bool
	small, big sync.Pool // of *[]byte; big ones have msize bytes
	slots      chan struct{}
	running    sync.WaitGroup

	sendMu sync.Mutex

	tagMu    sync.Mutex
	inFlight map[uint16][]uint16 // a request's tag to the tags of the Tflush that wait for it

	tree   *tree
	fids   *fidTable
	files  *openFiles
	memory sessionMemory
}

// request is one message and its reply.
type request struct {
	kind  uint8
	tag   uint16
	frame *[]byte
	in    decoder
	out   encoder
	reply *[]byte
	held  []*fid // kept alive until the reply is sent
}

func newSession(s *Server, conn io.ReadWriteCloser) *session {
	c := &session{
		server:   s,
		conn:     conn,
		in:       bufio.NewReaderSize(conn, 64<<10),
		slots:    make(chan struct{}, maxRequests),
		inFlight: make(map[uint16][]uint16),
	}
	c.memory.budget = s.config.Memory
	c.small.New = func() any { b := make([]byte, smallBuffer); return &b }
	c.setMessageSize(firstMessage)
	c.reset()
	return c
}

func (c *session) setMessageSize(n uint32) {
	c.msize = n
	c.big = sync.Pool{New: func() any { b := make([]byte, n); return &b }}
}

// reset forgets all fids, as a new Tversion demands.
func (c *session) reset() {
	if c.fids != nil {
		c.closeFids()
	}
	c.tree = newTree(4 * c.server.config.MaxFids)
	c.files = &openFiles{limit: int64(c.server.config.MaxOpen)}
	c.fids = newFidTable(c.server.config.MaxFids, &c.memory)
}

// run serves until the connection ends and returns why; io.EOF between two messages is an orderly end.
func (c *session) run() error {
	err := c.loop()
	c.conn.Close() // frees requests that wait to send
	c.running.Wait()
	c.closeFids()
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
		switch q.kind {
		case msgTversion:
			c.running.Wait()
			c.answer(q)
		case msgTflush:
			c.flush(q)
		default:
			if !c.start(q.tag) {
				return errTagInUse
			}
			c.dispatch(q)
		}
	}
}

// dispatch blocks while maxRequests run.
func (c *session) dispatch(q *request) {
	if operations[q.kind].quick {
		c.answer(q)
		return
	}
	c.slots <- struct{}{}
	c.running.Go(func() {
		defer func() { <-c.slots }()
		c.answer(q)
	})
}

// receive reads one frame. A length that the session did not agree to ends the session, because the bytes after it
// cannot be distinguished any more.
func (c *session) receive() (*request, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n < headerSize || n > c.msize {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", errFrame, n, c.msize)
	}
	frame := c.buffer(int(n))
	body := (*frame)[:n-4]
	if _, err := io.ReadFull(c.in, body); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	q := &request{kind: body[0], tag: binary.LittleEndian.Uint16(body[1:]), frame: frame}
	q.in.rest = body[3:]
	return q, nil
}

// answer runs a request and sends its reply. A failed send shows up as a failed receive.
func (c *session) answer(q *request) {
	c.reserve(q, smallBuffer)
	kind := q.kind + 1
	if err := c.handle(q); err != nil {
		kind = msgRlerror
		q.out.buf = q.out.buf[:headerSize]
		q.out.u32(uint32(c.server.toErrno(err)))
	}
	q.out.header(kind, q.tag)
	c.finish(q)
	for _, f := range q.held {
		c.putFid(f)
	}
	c.release(q.frame)
	c.release(q.reply)
}

// handle runs the operation. A panic is a bug of ours, never the guest's right: it costs this request, not the host.
func (c *session) handle(q *request) (err error) {
	defer func() {
		if r := recover(); r != nil {
			c.server.log.Error("mount: request panicked", "type", q.kind, "panic", r, "stack", string(debug.Stack()))
			err = errno.EIO
		}
	}()
	op := operations[q.kind]
	switch {
	case op.run == nil:
		return errno.EOPNOTSUPP
	case !c.negotiated && q.kind != msgTversion:
		return errno.EINVAL
	case op.mutates && c.server.config.ReadOnly:
		return errno.EROFS
	}
	return op.run(c, q)
}

// start notes a request; false means that its tag is taken.
func (c *session) start(tag uint16) bool {
	c.tagMu.Lock()
	defer c.tagMu.Unlock()
	if _, taken := c.inFlight[tag]; taken {
		return false
	}
	c.inFlight[tag] = nil
	return true
}

// finish sends the reply, then the replies to those who flushed the request. The tag is freed first, because the guest may
// use it again as soon as it sees the reply; a Tflush that comes in between waits for sendMu.
func (c *session) finish(q *request) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	c.tagMu.Lock()
	waiting := c.inFlight[q.tag]
	delete(c.inFlight, q.tag)
	c.tagMu.Unlock()
	c.transmit(q.out.buf)
	for _, flush := range waiting {
		c.transmit(flushed(flush))
	}
}

// transmit sends one message; sendMu is held. After a failure the connection is useless, and the loop must hear of it.
func (c *session) transmit(message []byte) {
	if _, err := c.conn.Write(message); err != nil {
		c.conn.Close()
	}
}

// flush answers Tflush: oldtag[2]. Requests are short and not interrupted; the promise is only that the old reply comes first.
func (c *session) flush(q *request) {
	old := q.in.u16()
	c.release(q.frame)
	c.tagMu.Lock()
	waiting, running := c.inFlight[old]
	if running && len(waiting) < maxRequests {
		c.inFlight[old] = append(waiting, q.tag)
		c.tagMu.Unlock()
		return
	}
	c.tagMu.Unlock()
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	c.transmit(flushed(q.tag))
}

// flushed returns an Rflush.
func flushed(tag uint16) []byte {
	out := encoder{buf: make([]byte, headerSize)}
	out.header(msgTflush+1, tag)
	return out.buf
}

// version answers Tversion: msize[4] version[s].
func (c *session) version(q *request) error {
	msize, name := q.in.u32(), q.in.str()
	if err := q.in.end(); err != nil {
		return err
	}
	if msize < minMessage {
		return errno.EINVAL
	}
	c.reset()
	c.setMessageSize(min(msize, MaxMessage))
	c.negotiated = name == "9P2000.L" || strings.HasPrefix(name, "9P2000.L.")
	q.out.u32(c.msize)
	if c.negotiated {
		q.out.str("9P2000.L")
	} else {
		q.out.str("unknown")
	}
	return nil
}

// buffer returns at least n bytes, n being at most msize.
func (c *session) buffer(n int) *[]byte {
	if n <= smallBuffer {
		return c.small.Get().(*[]byte)
	}
	b := c.big.Get().(*[]byte)
	c.memory.charge(int64(len(*b)))
	return b
}

// release gives a buffer back; one of an earlier msize is left to the garbage collector.
func (c *session) release(b *[]byte) {
	if len(*b) != smallBuffer {
		c.memory.give(int64(len(*b)))
	}
	switch len(*b) {
	case smallBuffer:
		c.small.Put(b)
	case int(c.msize):
		c.big.Put(b)
	}
}

// reserve makes room for a reply of n bytes, header included.
func (c *session) reserve(q *request, n int) {
	if q.reply != nil {
		c.release(q.reply)
	}
	q.reply = c.buffer(n)
	q.out.buf = (*q.reply)[:headerSize]
}

// operation answers one type of message.
type operation struct {
	run func(*session, *request) error
	// mutates marks those that a read-only share refuses as a whole; Tlopen looks at its flags itself.
	mutates bool
	// quick ones run in the session's loop: they move no data and come by the thousands, one after the other, so that
	// handing them to another goroutine would cost more than it gains.
	quick bool
}

// operations is indexed by message type. Tflush is missing: the session's loop answers it.
var operations = [256]operation{
	msgTversion:     {run: (*session).version},
	msgTattach:      {run: (*session).attach},
	msgTwalk:        {run: (*session).walk, quick: true},
	msgTclunk:       {run: (*session).clunk, quick: true},
	msgTgetattr:     {run: (*session).getattr, quick: true},
	msgTsetattr:     {run: (*session).setattr, mutates: true},
	msgTstatfs:      {run: (*session).statfs},
	msgTreadlink:    {run: (*session).readlink},
	msgTlopen:       {run: (*session).lopen},
	msgTlcreate:     {run: (*session).lcreate, mutates: true},
	msgTread:        {run: (*session).read},
	msgTwrite:       {run: (*session).write, mutates: true},
	msgTfsync:       {run: (*session).fsync},
	msgTreaddir:     {run: (*session).readdir},
	msgTmkdir:       {run: (*session).mkdir, mutates: true},
	msgTsymlink:     {run: (*session).symlink, mutates: true},
	msgTmknod:       {run: (*session).mknod, mutates: true},
	msgTlink:        {run: (*session).link, mutates: true},
	msgTrename:      {run: (*session).rename, mutates: true},
	msgTrenameat:    {run: (*session).renameat, mutates: true},
	msgTunlinkat:    {run: (*session).unlinkat, mutates: true},
	msgTremove:      {run: (*session).remove, mutates: true},
	msgTlock:        {run: (*session).lock},
	msgTgetlock:     {run: (*session).getlock},
	msgTxattrwalk:   {run: (*session).xattr},
	msgTxattrcreate: {run: (*session).xattr, mutates: true},
}

// fidMemory is about what a fid costs: itself, its place in the tables, and the names that are remembered with it.
const fidMemory = 1 << 10

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

// toErrno translates an error of the host to the number that Rlerror carries. What the host cannot name is an I/O error.
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
