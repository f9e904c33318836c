package rpc

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
	// maxChunk bounds the data of one read or poll, well under maxMessage.
	maxChunk = 256 << 10
	// joinLimit is up to where a message's header and body are copied into one write; above, two writes are cheaper.
	joinLimit = 32 << 10
)

// transport carries messages over a byte stream: one segment each, nearly always in one write, and none larger than
// maxMessage. One goroutine receives and one sends.
type transport struct {
	in      *input
	decoder *capnp.Decoder
	w       io.Writer
	joined  []byte // reused by send
}

func newTransport(r io.Reader, w io.Writer) *transport {
	in := &input{Reader: r}
	d := capnp.NewDecoder(in)
	d.MaxMessageSize = maxMessage
	return &transport{in: in, decoder: d, w: w}
}

// input remembers why it ended: the decoder does not always pass that on as it is.
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

// newMessage returns an empty message to be filled and sent.
func newMessage() (rpccp.Message, error) {
	_, segment, err := capnp.NewMessage(capnp.SingleSegment(nil))
	if err != nil {
		return rpccp.Message{}, err
	}
	return rpccp.NewRootMessage(segment)
}

// messageSize is what a message takes in memory, about.
func messageSize(m *capnp.Message) int {
	n, err := m.TotalSize()
	if err != nil {
		return 0
	}
	return int(n)
}

func (t *transport) receive() (rpccp.Message, error) {
	m, err := t.decoder.Decode()
	if err != nil {
		return rpccp.Message{}, cmp.Or(t.in.err, err)
	}
	return rpccp.ReadRootMessage(m)
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
	t.joined = binary.LittleEndian.AppendUint32(t.joined[:0], 0) // number of segments less one
	t.joined = binary.LittleEndian.AppendUint32(t.joined, uint32(len(body)/8))
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
