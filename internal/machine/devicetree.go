package machine

import (
	"bytes"
	"encoding/binary"
)

// fdtBuilder writes a flattened device tree.
// Source: Devicetree Specification 0.4, chapter 5 "Flattened Devicetree (DTB) Format".
type fdtBuilder struct {
	structure bytes.Buffer
	strings   bytes.Buffer
	offsets   map[string]uint32 // property name to its place in strings
}

const (
	fdtMagic     = 0xd00dfeed
	fdtBeginNode = 1
	fdtEndNode   = 2
	fdtProp      = 3
	fdtEnd       = 9

	fdtHeaderSize  = 40
	fdtReserveSize = 16 // the empty memory reservation block: its terminator
)

func newFDT() *fdtBuilder { return &fdtBuilder{offsets: map[string]uint32{}} }

func (b *fdtBuilder) word(v uint32) {
	b.structure.Write(binary.BigEndian.AppendUint32(nil, v))
}

func (b *fdtBuilder) pad() {
	for b.structure.Len()%4 != 0 {
		b.structure.WriteByte(0)
	}
}

// node writes a node and, through fill, its properties and then its children.
func (b *fdtBuilder) node(name string, fill func()) {
	b.word(fdtBeginNode)
	b.structure.WriteString(name + "\x00")
	b.pad()
	fill()
	b.word(fdtEndNode)
}

func (b *fdtBuilder) property(name string, value []byte) {
	offset, known := b.offsets[name]
	if !known {
		offset = uint32(b.strings.Len())
		b.offsets[name] = offset
		b.strings.WriteString(name + "\x00")
	}
	b.word(fdtProp)
	b.word(uint32(len(value)))
	b.word(offset)
	b.structure.Write(value)
	b.pad()
}

// cells writes a property of 32-bit numbers.
func (b *fdtBuilder) cells(name string, values ...uint32) {
	var data []byte
	for _, v := range values {
		data = binary.BigEndian.AppendUint32(data, v)
	}
	b.property(name, data)
}

// reg writes an address and a size of 64 bits each.
func (b *fdtBuilder) reg(address, size uint64) {
	b.cells("reg", uint32(address>>32), uint32(address), uint32(size>>32), uint32(size))
}

// text writes a property of one or more strings.
func (b *fdtBuilder) text(name string, values ...string) {
	var data []byte
	for _, v := range values {
		data = append(append(data, v...), 0)
	}
	b.property(name, data)
}

func (b *fdtBuilder) empty(name string) { b.property(name, nil) }

// bytes assembles the blob: header, memory reservation block, structure block, strings block.
func (b *fdtBuilder) bytes() []byte {
	b.word(fdtEnd)
	structureAt := uint32(fdtHeaderSize + fdtReserveSize)
	stringsAt := structureAt + uint32(b.structure.Len())
	total := stringsAt + uint32(b.strings.Len())
	var out []byte
	for _, field := range []uint32{
		fdtMagic, total, structureAt, stringsAt, fdtHeaderSize, 17, 16, 0,
		uint32(b.strings.Len()), uint32(b.structure.Len()),
	} {
		out = binary.BigEndian.AppendUint32(out, field)
	}
	out = append(out, make([]byte, fdtReserveSize)...)
	out = append(out, b.structure.Bytes()...)
	return append(out, b.strings.Bytes()...)
}
