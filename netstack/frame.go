package netstack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame on the link's stream, as QEMU's socket back end has it:
//
//	┌────────────────┬──────────────────────────────┬─────────────────────────┐
//	│ length, u32 BE │ virtio_net_hdr, 12 bytes     │ Ethernet frame, no FCS  │
//	│                │ (only with Config.Header)    │ 14 to 65553 bytes       │
//	└────────────────┴──────────────────────────────┴─────────────────────────┘
//	                 │◄──────────────────── length ──────────────────────────►│
//
// The limits are those of the machine's device. A stream that announces more has lost its framing, and nothing after
// that point means anything.
const (
	prefixSize = 4
	frameMin   = 14         // the Ethernet header
	frameMax   = 65535 + 18 // an IP packet of 64 KiB, Ethernet header and a VLAN tag

	readSize = 256 << 10 // of the buffer that frames are parsed in: what the machine's device gathers at once
	maxEmpty = 100       // reads of nothing in a row before the reader is given up
)

// framer parses and writes the stream of one direction. header is the size of the virtio_net_hdr, or 0.
type framer struct {
	link   io.Reader
	header int
	buf    []byte
	at     int // bytes of buf that were handed out
}

func newFramer(link io.Reader, header bool) *framer {
	f := &framer{link: link, buf: make([]byte, 0, readSize)}
	if header {
		f.header = virtioHeaderSize
	}
	return f
}

// next returns the next frame with its virtio_net_hdr (nil without one). Both lie in the framer's buffer and may be
// written to; they are valid until the next call. Of a frame that is shorter than its header nothing is returned.
// io.EOF is only returned between frames.
func (f *framer) next() (header, frame []byte, err error) {
	for {
		size, ok, err := f.whole()
		if err != nil {
			return nil, nil, err
		}
		if ok {
			body := f.buf[f.at+prefixSize : f.at+prefixSize+size]
			f.at += prefixSize + size
			if size < f.header {
				return nil, nil, nil
			}
			return body[:f.header:f.header], body[f.header:len(body):len(body)], nil
		}
		if err := f.fill(); err != nil {
			return nil, nil, err
		}
	}
}

// whole says whether the buffer begins with a whole frame, and of which size.
func (f *framer) whole() (size int, ok bool, err error) {
	have := len(f.buf) - f.at
	if have < prefixSize {
		return 0, false, nil
	}
	length := binary.BigEndian.Uint32(f.buf[f.at:])
	if length > uint32(f.header+frameMax) {
		return 0, false, fmt.Errorf("a frame of %d bytes from the guest: at most %d are possible; the link has lost its framing",
			length, f.header+frameMax)
	}
	return int(length), have-prefixSize >= int(length), nil
}

// fill reads behind the bytes that are there, which are less than one frame. It moves them to the front when the rest
// of the largest frame would not fit otherwise, and not at each read: they may come one by one.
func (f *framer) fill() error {
	if f.at == len(f.buf) || cap(f.buf)-f.at < prefixSize+virtioHeaderSize+frameMax {
		n := copy(f.buf[:cap(f.buf)], f.buf[f.at:])
		f.buf, f.at = f.buf[:n], 0
	}
	for range maxEmpty {
		n, err := f.link.Read(f.buf[len(f.buf):cap(f.buf)])
		f.buf = f.buf[:len(f.buf)+n]
		if n > 0 {
			return nil // an error comes again
		}
		if err != nil {
			return f.ended(err)
		}
	}
	return io.ErrNoProgress
}

func (f *framer) ended(err error) error {
	if errors.Is(err, io.EOF) && len(f.buf) > f.at {
		return fmt.Errorf("the link ended inside a frame: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// putPrefix writes the length of a frame whose size, virtio_net_hdr included, is size.
func putPrefix(to []byte, size int) {
	binary.BigEndian.PutUint32(to, uint32(size))
}
