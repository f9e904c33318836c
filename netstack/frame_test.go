package netstack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// streamOf makes a stream of frames, each with the header given before it.
func streamOf(header []byte, frames ...[]byte) []byte {
	var s []byte
	for _, f := range frames {
		s = binary.BigEndian.AppendUint32(s, uint32(len(header)+len(f)))
		s = append(append(s, header...), f...)
	}
	return s
}

func filled(n int, with byte) []byte { return bytes.Repeat([]byte{with}, n) }

func TestFramer(t *testing.T) {
	head := filled(virtioHeaderSize, 7)
	small, big := filled(frameMin, 1), filled(frameMax, 2)
	tests := []struct {
		name   string
		header bool
		stream []byte
		want   [][]byte
		err    error  // at the end; nil: io.EOF
		says   string // in the error
	}{
		{name: "nothing"},
		{name: "two frames", stream: streamOf(nil, small, big), want: [][]byte{small, big}},
		{name: "many large frames", stream: streamOf(nil, big, big, big, big, big, small), want: [][]byte{big, big, big, big, big, small}},
		{name: "with headers", header: true, stream: streamOf(head, small, big), want: [][]byte{small, big}},
		{name: "short frames are the filter's affair", stream: streamOf(nil, filled(0, 0), filled(3, 3)), want: [][]byte{nil, filled(3, 3)}},
		{name: "shorter than its header", header: true, stream: streamOf(nil, filled(11, 0), filled(12, 7)), want: [][]byte{nil, nil}},
		{name: "one byte too long", stream: streamOf(nil, small, filled(frameMax+1, 0)), want: [][]byte{small}, says: "lost its framing"},
		{name: "largest length", header: true, stream: []byte{255, 255, 255, 255}, says: "4294967295 bytes"},
		{name: "ends inside a length", stream: []byte{0, 0}, err: io.ErrUnexpectedEOF},
		{name: "ends inside a frame", stream: streamOf(nil, small, big)[:100], want: [][]byte{small}, err: io.ErrUnexpectedEOF},
	}
	readers := map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r },
		"bytes": iotest.OneByteReader,
		"half":  iotest.HalfReader,
		"error": iotest.DataErrReader,
	}
	for _, test := range tests {
		for how, reader := range readers {
			t.Run(test.name+"/"+how, func(t *testing.T) {
				got, err := readFrames(newFramer(reader(bytes.NewReader(test.stream)), test.header))
				if !slices.EqualFunc(got, test.want, bytes.Equal) {
					t.Errorf("got %d frames that are not the %d expected ones", len(got), len(test.want))
				}
				want := test.err
				if want == nil && test.says == "" {
					want = io.EOF
				}
				if want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got error %v, want %v %s", err, want, test.says)
				}
			})
		}
	}
}

// readFrames copies all frames up to the error that ends them.
func readFrames(f *framer) (frames [][]byte, err error) {
	for {
		_, frame, err := f.next()
		if err != nil {
			return frames, err
		}
		frames = append(frames, append([]byte(nil), frame...))
	}
}

func TestFramerGivesHeaderAndFrame(t *testing.T) {
	head, frame := filled(virtioHeaderSize, 7), filled(20, 1)
	gotHead, gotFrame, err := newFramer(bytes.NewReader(streamOf(head, frame)), true).next()
	if err != nil || !bytes.Equal(gotHead, head) || !bytes.Equal(gotFrame, frame) {
		t.Errorf("got %v, %v, %v", gotHead, gotFrame, err)
	}
}

func TestFramerGivesUpOnReadsOfNothing(t *testing.T) {
	_, _, err := newFramer(emptyReader{}, false).next()
	if !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v, want %v", err, io.ErrNoProgress)
	}
}

type emptyReader struct{}

func (emptyReader) Read([]byte) (int, error) { return 0, nil }

// FuzzFramer compares with a parser that has the whole stream, read in pieces of a size that the fuzzer chooses.
func FuzzFramer(f *testing.F) {
	f.Add([]byte{}, false, uint8(1))
	f.Add(streamOf(nil, filled(14, 1), filled(1500, 2)), false, uint8(3))
	f.Add(streamOf(filled(12, 0), filled(14, 1), filled(0, 2)), true, uint8(255))
	f.Add([]byte{0, 1, 0, 30, 9}, true, uint8(2))
	f.Fuzz(func(t *testing.T, stream []byte, header bool, piece uint8) {
		framer := newFramer(&pieceReader{stream, int(piece) + 1}, header)
		rest := stream
		for {
			_, got, err := framer.next()
			if err != nil {
				if len(rest) == 0 != errors.Is(err, io.EOF) {
					t.Fatalf("%d bytes left, error %v", len(rest), err)
				}
				break
			}
			size := int(binary.BigEndian.Uint32(rest))
			want := rest[prefixSize : prefixSize+size]
			want = want[min(framer.header, len(want)):]
			if !bytes.Equal(got, want) {
				t.Fatalf("got frame %x, want %x", got, want)
			}
			rest = rest[prefixSize+size:]
		}
		if cap(framer.buf) != readSize {
			t.Fatalf("the buffer has %d bytes, want %d", cap(framer.buf), readSize)
		}
	})
}

// pieceReader reads at most size bytes at once.
type pieceReader struct {
	from []byte
	size int
}

func (r *pieceReader) Read(p []byte) (int, error) {
	if len(r.from) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.size)], r.from)
	r.from = r.from[n:]
	return n, nil
}
