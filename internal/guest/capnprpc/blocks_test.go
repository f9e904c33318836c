package capnprpc

import (
	"bytes"
	"io"
	"net"
	"testing"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc/streamwire"
)

// TestBlocks: messages of all sizes around those of blocks arrive unchanged, and reused memory shows nothing of its earlier content.
func TestBlocks(t *testing.T) {
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	var wireBytes bytes.Buffer
	sends, receives := newTransport(nil, io.MultiWriter(here, &wireBytes)), newTransport(there, nil)
	for round := range 3 {
		for _, fits := range append(blockSizes[:], blockSizes[0]/4*3, 100) {
			for size := fits - 2*blockSlack - 9; size <= fits+9; size += 7 {
				if size < 0 {
					continue
				}
				data := bytes.Repeat([]byte{byte('a' + round)}, size)
				received := make(chan error, 1)
				go func() {
					m, err := receives.receive()
					if err == nil {
						var p capnp.Ptr
						if p, err = m.Message().Root(); err == nil && p.Struct().Size().PointerCount == 0 {
							err = io.ErrUnexpectedEOF
						}
						m.Message().Release()
					}
					received <- err
				}()
				wireBytes.Reset()
				m, err := sends.newMessage(size, nil)
				if err != nil {
					t.Fatal(err)
				}
				call, _ := m.NewCall()
				payload, _ := call.NewParams()
				params, err := streamwire.NewSink_send_Params(payload.Segment())
				if err == nil {
					err = params.SetData(data)
				}
				if err == nil {
					err = payload.SetContent(params.ToPtr())
				}
				if err == nil {
					err = sends.send(m.Message())
				}
				if err != nil {
					t.Fatalf("%d bytes: %v", size, err)
				}
				m.Message().Release()
				if err := <-received; err != nil {
					t.Fatalf("%d bytes: %v", size, err)
				}
				for _, old := range []byte("abc") {
					if old != byte('a'+round) && bytes.Count(wireBytes.Bytes(), []byte{old, old, old, old}) > 0 {
						t.Fatalf("%d bytes in round %d: there is something of an earlier message", size, round)
					}
				}
			}
		}
	}
}

// TestHostileFrames: bytes that are no message of one segment end the connection before anything is allocated for them.
func TestHostileFrames(t *testing.T) {
	for name, head := range map[string][]byte{
		"empty":          {0, 0, 0, 0, 0, 0, 0, 0},
		"two segments":   {1, 0, 0, 0, 1, 0, 0, 0},
		"many segments":  {255, 255, 255, 255, 1, 0, 0, 0},
		"too large":      {0, 0, 0, 0, 255, 255, 255, 255},
		"just too large": {0, 0, 0, 0, 0, 0, 8, 0},
	} {
		if _, err := newTransport(io.MultiReader(bytes.NewReader(head), endless{}), nil).receive(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// endless reads as zeros without end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { clear(b); return len(b), nil }
