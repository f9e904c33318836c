package native

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"

	"agentvm/internal/machine/native/blocks"
)

// Digest is a key's name in other processes. Of the translator that made the code it says nothing.
func (k *Key) Digest() [sha256.Size]byte {
	b, err := binary.Append([]byte(runtime.GOARCH), binary.LittleEndian, k)
	if err != nil {
		panic(fmt.Sprintf("native: a key has a field without a size: %v", err)) // in the first test
	}
	return sha256.Sum256(b)
}

// A stored block, in little-endian numbers:
//
//	4                 instructions of the guest
//	4                 n, of entries
//	6 n               entries: offset in the page (2), place in the code (4)
//	PageSize / 16     what was seen of the page
//	the rest          code
const (
	storedHeader = 8
	storedEntry  = 6
	seenSize     = blocks.PageSize / 16
)

// Encode makes one piece of a translation, and of what was seen of its page, for Decode.
func Encode(made blocks.Translation, seen []byte) []byte {
	b := make([]byte, 0, storedHeader+storedEntry*len(made.Entries)+seenSize+len(made.Code))
	b = binary.LittleEndian.AppendUint32(b, uint32(made.Instructions))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(made.Entries)))
	for _, e := range made.Entries {
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Offset))
		b = binary.LittleEndian.AppendUint32(b, uint32(e.At))
	}
	b = append(b, seen...)
	return append(b, made.Code...)
}

// Decode takes a piece of Encode apart. What it returns has the right form; that its code may be executed only Code.Add finds out.
func Decode(b []byte) (made blocks.Translation, seen []byte, ok bool) {
	if len(b) < storedHeader {
		return made, nil, false
	}
	instructions, count := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	b = b[storedHeader:]
	if instructions > blocks.PageSize/2 || count == 0 || count > blocks.PageSize/2 || len(b) <= storedEntry*int(count)+seenSize {
		return made, nil, false
	}
	made.Instructions = int(instructions)
	last := -2
	size := len(b) - storedEntry*int(count) - seenSize
	for range count {
		offset, at := int(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint32(b[2:])
		if offset <= last || offset%2 != 0 || offset >= blocks.PageSize || uint64(at) >= uint64(size) {
			return blocks.Translation{}, nil, false
		}
		made.Entries = append(made.Entries, blocks.Entry{Offset: offset, At: int(at)})
		last, b = offset, b[storedEntry:]
	}
	made.Code = b[seenSize:]
	return made, slices.Clone(b[:seenSize]), true
}
