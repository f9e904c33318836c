// Package fusetest is a FUSE client for tests of servers: what Linux's virtiofs sends, and what no honest guest would. It knows nothing of
// the server's code. Messages and numbers are those of Linux's include/uapi/linux/fuse.h.
package fusetest

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"agentvm/internal/host/errno"
)

// Opcodes.
const (
	Lookup      = 1
	Forget      = 2
	Getattr     = 3
	Setattr     = 4
	Readlink    = 5
	Symlink     = 6
	Mknod       = 8
	Mkdir       = 9
	Unlink      = 10
	Rmdir       = 11
	Rename      = 12
	Link        = 13
	Open        = 14
	Read        = 15
	Write       = 16
	Statfs      = 17
	Release     = 18
	Fsync       = 20
	Getxattr    = 22
	Listxattr   = 23
	Init        = 26
	Opendir     = 27
	Readdir     = 28
	Releasedir  = 29
	Create      = 35
	Destroy     = 38
	BatchForget = 42
	Readdirplus = 44
)

// Sizes in bytes of the headers, and the number of the root.
const (
	RequestHeader = 40
	ReplyHeader   = 16
	Root          = 1
)

// Body is what follows a request's header.
type Body []byte

// U32 returns b with a number appended.
func (b Body) U32(v uint32) Body { return binary.LittleEndian.AppendUint32(b, v) }

// U64 returns b with a number appended.
func (b Body) U64(v uint64) Body { return binary.LittleEndian.AppendUint64(b, v) }

// Str returns b with a text and a NUL appended.
func (b Body) Str(s string) Body { return append(append(b, s...), 0) }

// Frame is a whole request.
func Frame(op uint32, unique, node uint64, body Body) []byte {
	return append(Body(nil).U32(uint32(RequestHeader+len(body))).U32(op).U64(unique).U64(node).U32(0).U32(0).U32(1).U32(0), body...)
}

// InitBody is FUSE_INIT's: version 7.38 and the flags that Linux sends.
func InitBody() Body { return Body(nil).U32(7).U32(38).U32(128 << 10).U32(1<<32 - 1) }

// ReadReply reads one reply. err is the connection's.
func ReadReply(conn io.Reader) (unique uint64, number errno.Errno, body []byte, err error) {
	var header [ReplyHeader]byte
	if _, err := io.ReadFull(conn, header[:]); err != nil {
		return 0, 0, nil, err
	}
	size := binary.LittleEndian.Uint32(header[:])
	if size < ReplyHeader || size > 2<<20 {
		return 0, 0, nil, errors.New("a reply of a size out of range")
	}
	body = make([]byte, size-ReplyHeader)
	_, err = io.ReadFull(conn, body)
	return binary.LittleEndian.Uint64(header[8:]), -errno.Errno(binary.LittleEndian.Uint32(header[4:])), body, err
}

type reply struct {
	number errno.Errno
	body   []byte
}

// client is a mounted share: it numbers requests, and counts references to nodes as the kernel does.
type client struct {
	conn io.ReadWriter

	sendMu  sync.Mutex // not held while a reply is taken: a server may send before it reads on
	mu      sync.Mutex
	unique  uint64
	waiting map[uint64]chan reply // nil when the connection has ended
	nodes   map[uint64]*node
}

// node counts the references to a node of the server: of this client's files, and of the server's replies.
type node struct{ files, lookups uint64 }

// Mount begins a session and returns the root.
func Mount(conn io.ReadWriter) (*File, error) {
	c := &client{conn: conn, waiting: make(map[uint64]chan reply), nodes: make(map[uint64]*node)}
	go c.receive()
	if _, err := c.call(Init, 0, InitBody()); err != nil {
		return nil, err
	}
	return &File{c: c, id: Root, isDir: true}, nil
}

func (c *client) receive() {
	for {
		unique, number, body, err := ReadReply(c.conn)
		c.mu.Lock()
		if err != nil {
			for _, waiting := range c.waiting {
				close(waiting)
			}
			c.waiting = nil
			c.mu.Unlock()
			return
		}
		waiting := c.waiting[unique]
		delete(c.waiting, unique)
		c.mu.Unlock()
		waiting <- reply{number, body}
	}
}

func (c *client) call(op uint32, id uint64, body Body) ([]byte, error) {
	answer := make(chan reply, 1)
	c.mu.Lock()
	if c.waiting == nil {
		c.mu.Unlock()
		return nil, io.ErrClosedPipe
	}
	c.unique += 2
	unique := c.unique
	c.waiting[unique] = answer
	c.mu.Unlock()
	if err := c.send(Frame(op, unique, id, body)); err != nil {
		return nil, err
	}
	r, ok := <-answer
	switch {
	case !ok:
		return nil, io.ErrUnexpectedEOF
	case r.number != 0:
		return nil, r.number
	}
	return r.body, nil
}

func (c *client) send(message []byte) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	_, err := c.conn.Write(message)
	return err
}

// found counts a reference that a reply gave to a node.
func (c *client) found(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[id] == nil {
		c.nodes[id] = &node{}
	}
	c.nodes[id].files++
	c.nodes[id].lookups++
}

// hold counts another file of a node.
func (c *client) hold(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[id] != nil {
		c.nodes[id].files++
	}
}

// drop gives all references back with the last file of a node.
func (c *client) drop(id uint64) {
	c.mu.Lock()
	n := c.nodes[id]
	if n == nil || n.files > 1 {
		if n != nil {
			n.files--
		}
		c.mu.Unlock()
		return
	}
	delete(c.nodes, id)
	c.unique += 2
	message := Frame(Forget, c.unique, id, Body(nil).U64(n.lookups))
	c.mu.Unlock()
	_ = c.send(message)
}
