package capnprpc

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
)

const (
	// maxMessage bounds a message, so that a length sent by a hostile peer allocates no more than this.
	maxMessage = 4 << 20
	// MaxChunk bounds the data of one read or poll, well under maxMessage.
	MaxChunk = 256 << 10
	// joinLimit is the size in bytes up to which a message's head and body are copied into one write; above it, two writes are cheaper.
	joinLimit = 32 << 10
)

// transport carries messages over a byte stream: one segment each, nearly always in one write, and none larger than
// maxMessage. One goroutine receives and one sends.
type transport struct {
	in     *input
	w      io.Writer
	joined []byte // reused by send
	head   [frameHead]byte
	blocks blocks
}

func newTransport(r io.Reader, w io.Writer) *transport {
	return &transport{in: &input{Reader: r}, w: w}
}

// input remembers the reader's error, which io.ReadFull may replace by its own.
type input struct {
	io.Reader
	err error
}

func (in *input) Read(b []byte) (n int, err error) {
	n, err = in.Reader.Read(b)
	if err != nil {
		in.err = err
	}
	return n, err
}

// newMessage returns an empty message.
func newMessage() (rpccp.Message, error) { return messageIn(capnp.SingleSegment(nil)) }

// newMessage returns an empty message for data bytes of data, or for those of from.
func (t *transport) newMessage(data int, from *piped) (rpccp.Message, error) {
	if from != nil {
		return messageIn(from)
	}
	if b := t.blocks.empty(data); b != nil {
		return messageIn(b)
	}
	return newMessage()
}

func messageIn(arena capnp.Arena) (rpccp.Message, error) {
	_, segment, err := capnp.NewMessage(arena)
	if err != nil {
		return rpccp.Message{}, err
	}
	return rpccp.NewRootMessage(segment)
}

// messageCost is how many bytes of memory a message takes besides its content, of which the smallest have a kilobyte.
const messageCost = 1200

// messageSize is the approximate size of a message's content in bytes.
func messageSize(m *capnp.Message) int {
	n, err := m.TotalSize()
	if err != nil {
		return 0
	}
	return int(n)
}

func (t *transport) receive() (rpccp.Message, error) {
	m, err := t.read()
	if err != nil {
		return rpccp.Message{}, cmp.Or(t.in.err, err)
	}
	return rpccp.ReadRootMessage(m)
}

// read reads one message: the number of segments minus one, the length of the first in words, and the words.
func (t *transport) read() (*capnp.Message, error) {
	if _, err := io.ReadFull(t.in, t.head[:]); err != nil {
		return nil, err
	}
	segments, words := binary.LittleEndian.Uint32(t.head[:]), binary.LittleEndian.Uint32(t.head[4:])
	if segments != 0 || words == 0 || words > (maxMessage-frameHead)/8 {
		return nil, fmt.Errorf("%w: message of %d and one segments, the first of %d words", ErrProtocol, segments, words)
	}
	arena, err := t.blocks.full(int(words)*8, func(b []byte) error { _, err := io.ReadFull(t.in, b); return err })
	if err != nil {
		return nil, err
	}
	m, _, err := capnp.NewMessage(arena)
	return m, err
}

func (t *transport) send(m *capnp.Message) error {
	if m.NumSegments() != 1 {
		return errors.New("message has more than one segment")
	}
	segment, err := m.Segment(0)
	if err != nil {
		return err
	}
	body := segment.Data()
	if len(body) > maxMessage-8 {
		return fmt.Errorf("message of %d bytes is too large", len(body))
	}
	if p, ok := m.Arena.(*piped); ok {
		return t.sendPiped(p, body)
	}
	if frame := framed(m, body); frame != nil {
		_, err := t.w.Write(frame)
		return err
	}
	t.joined = append(t.joined[:0], make([]byte, frameHead)...)
	putHead(t.joined, len(body))
	if len(body) <= joinLimit {
		t.joined = append(t.joined, body...)
		body = nil
	}
	if _, err := t.w.Write(t.joined); err != nil || body == nil {
		return err
	}
	_, err = t.w.Write(body)
	return err
}
