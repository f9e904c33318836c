package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"capnproto.org/go/capnp/v3"
	"capnproto.org/go/capnp/v3/rpc/transport"
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

// messages is a capnp transport over a byte stream. It differs from the library's own in using one segment, one write
// for most messages, and a limit on what it accepts.
type messages struct {
	decoder *capnp.Decoder
	w       io.Writer
	closer  io.Closer
	joined  []byte // reused by the one sending goroutine
}

func newMessages(r io.Reader, w io.Writer, c io.Closer) *messages {
	d := capnp.NewDecoder(r)
	d.MaxMessageSize = maxMessage
	return &messages{decoder: d, w: w, closer: c}
}

func (t *messages) NewMessage() (transport.OutgoingMessage, error) {
	_, segment, err := capnp.NewMessage(capnp.SingleSegment(nil))
	if err != nil {
		return nil, err
	}
	root, err := rpccp.NewRootMessage(segment)
	if err != nil {
		return nil, err
	}
	return &outgoing{t: t, message: root}, nil
}

func (t *messages) RecvMessage() (transport.IncomingMessage, error) {
	m, err := t.decoder.Decode()
	if err != nil {
		return nil, err
	}
	root, err := rpccp.ReadRootMessage(m)
	if err != nil {
		return nil, fmt.Errorf("message without a root: %w", err)
	}
	return &incoming{message: root}, nil
}

func (t *messages) Close() error { return t.closer.Close() }

func (t *messages) send(m *capnp.Message) error {
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

type outgoing struct {
	t        *messages
	message  rpccp.Message
	released bool
}

func (o *outgoing) Message() rpccp.Message { return o.message }
func (o *outgoing) Send() error            { return o.t.send(o.message.Message()) }

func (o *outgoing) Release() {
	if !o.released {
		o.released = true
		o.message.Message().Release()
	}
}

type incoming struct {
	message  rpccp.Message
	released bool
}

func (i *incoming) Message() rpccp.Message { return i.message }

func (i *incoming) Release() {
	if !i.released {
		i.released = true
		i.message.Message().Release()
	}
}
