package translations

import (
	"bufio"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// A pack, in little-endian numbers:
//
//	8          "avmcode" and the version of this form
//	4          n, of pieces
//	4          zeros, which are written again when the pack is used, so that its time of change is that
//	32         HMAC of the text above, the build, and the index
//	16 n       the index, in the order of names: first 8 bytes of the name as a number, place in the file (4), size (4)
//	           pieces: name (32), HMAC of the text, the build, name and contents (32), contents
const (
	magic        = "avmcode\x01"
	headerSize   = 48
	placeSize    = 16
	pieceHeader  = 2 * sha256.Size
	maxPiece     = 1 << 20 // more than the code of a page
	maxPieces    = 1 << 16 // of a pack
	maxFile      = 1 << 32 // what a place can say
	markAt       = 12      // of the zeros
	markSize     = 4
	numberOfName = 8
)

// errForged says that a file is none that a process with the key has written, or that it was damaged since.
var errForged = errors.New("it has no right HMAC")

// seal makes the HMACs of a build.
type seal struct {
	key   []byte
	build [sha256.Size]byte
}

// text is what HMACs are of, before the rest, so that none is good for something else.
const text = "agentvm translated code\n"

func (s seal) of(parts ...[]byte) []byte {
	h := hmac.New(sha256.New, s.key)
	_, _ = h.Write([]byte(text)) // never fails
	_, _ = h.Write(s.build[:])
	for _, part := range parts {
		_, _ = h.Write(part)
	}
	return h.Sum(nil)
}

// pack is what a file has. It is opened for each piece that is read: it may be removed at any time, and an idle process has no file open.
type pack struct {
	path    string
	changed time.Time // when its index was read
	index   []place
	used    atomic.Bool
}

type place struct {
	number   uint64 // of the name
	at, size uint32
}

func numberOf(name []byte) uint64 { return binary.BigEndian.Uint64(name[:numberOfName]) }

// openPack opens a file and reads its index. No number in it is believed, neither before its HMAC was compared nor then.
func openPack(path string, seal seal) (*pack, *os.File, error) {
	f, info, err := private.Open(path)
	if err != nil {
		return nil, nil, err
	}
	index, err := readIndex(f, info.Size(), seal)
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return &pack{path: path, changed: info.ModTime(), index: index}, f, nil
}

func readIndex(f *os.File, size int64, seal seal) ([]place, error) {
	var header [headerSize]byte
	if _, err := f.ReadAt(header[:], 0); err != nil {
		return nil, shortIsForged(err)
	}
	count := binary.LittleEndian.Uint32(header[8:])
	if string(header[:8]) != magic || count > maxPieces || headerSize+placeSize*int64(count) > size {
		return nil, errForged
	}
	b := make([]byte, placeSize*count)
	if _, err := f.ReadAt(b, headerSize); err != nil {
		return nil, shortIsForged(err)
	}
	if !hmac.Equal(header[markAt+markSize:], seal.of(b)) {
		return nil, errForged
	}
	index := make([]place, count)
	for i := range index {
		index[i] = place{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
		b = b[placeSize:]
	}
	return index, nil
}

func shortIsForged(err error) error {
	if errors.Is(err, io.EOF) {
		return errForged
	}
	return err
}

// piece reads the contents of a name; nil when they are not in the pack.
func (p *pack) piece(seal seal, name [sha256.Size]byte) ([]byte, error) {
	i, found := slices.BinarySearchFunc(p.index, numberOf(name[:]), func(at place, n uint64) int { return cmp.Compare(at.number, n) })
	if !found {
		return nil, nil
	}
	f, info, err := private.Open(p.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	gotName, contents, err := readPiece(f, info.Size(), seal, p.index[i])
	if err != nil || gotName != name { // of two names with the same number only one is found
		return nil, err
	}
	return contents, nil
}

// readPiece reads what is at a place.
func readPiece(f *os.File, size int64, seal seal, at place) (name [sha256.Size]byte, contents []byte, err error) {
	if at.size <= pieceHeader || at.size > maxPiece || int64(at.at)+int64(at.size) > size {
		return name, nil, errForged
	}
	b := make([]byte, at.size)
	if _, err := f.ReadAt(b, int64(at.at)); err != nil {
		return name, nil, shortIsForged(err)
	}
	contents = b[pieceHeader:]
	if !hmac.Equal(b[sha256.Size:pieceHeader], seal.of(b[:sha256.Size], contents)) {
		return name, nil, errForged
	}
	return [sha256.Size]byte(b), contents, nil
}

// markUsed makes now the file's time of change. A confined process cannot say so by the name.
func (p *pack) markUsed() {
	folder, err := os.OpenRoot(filepath.Dir(p.path))
	if err != nil {
		return
	}
	defer folder.Close()
	f, err := folder.OpenFile(filepath.Base(p.path), os.O_WRONLY, 0)
	if err != nil {
		return // removed meanwhile
	}
	defer f.Close()
	_, _ = f.WriteAt(make([]byte, markSize), markAt)
}

// writePack makes a file of pieces.
func writePack(path string, seal seal, pieces map[[sha256.Size]byte][]byte) error {
	names := make([]string, 0, len(pieces))
	for name := range pieces {
		names = append(names, string(name[:]))
	}
	slices.Sort(names)
	at := headerSize + placeSize*len(names)
	var index []byte
	for _, name := range names {
		size := pieceHeader + len(pieces[[sha256.Size]byte([]byte(name))])
		index = binary.LittleEndian.AppendUint64(index, numberOf([]byte(name)))
		index = binary.LittleEndian.AppendUint32(index, uint32(at))
		index = binary.LittleEndian.AppendUint32(index, uint32(size))
		at += size
	}
	header := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(names)))
	header = append(header, make([]byte, markSize)...)
	header = append(header, seal.of(index)...)
	f, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	f.Volatile = true
	w := bufio.NewWriterSize(f, 256<<10)
	for _, part := range [][]byte{header, index} {
		_, _ = w.Write(part) // Flush returns the error
	}
	for _, name := range names {
		name := []byte(name)
		contents := pieces[[sha256.Size]byte(name)]
		for _, part := range [][]byte{name, seal.of(name, contents), contents} {
			_, _ = w.Write(part)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Commit()
}
