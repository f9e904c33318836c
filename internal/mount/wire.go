package mount

import (
	"encoding/binary"
	"io/fs"
	"time"

	"agentvm/internal/errno"
)

// Message types of 9P2000.L as listed in Linux' include/net/9p/9p.h; a reply's type is its request's plus one.
const (
	msgRlerror      = 7
	msgTstatfs      = 8
	msgTlopen       = 12
	msgTlcreate     = 14
	msgTsymlink     = 16
	msgTmknod       = 18
	msgTrename      = 20
	msgTreadlink    = 22
	msgTgetattr     = 24
	msgTsetattr     = 26
	msgTxattrwalk   = 30
	msgTxattrcreate = 32
	msgTreaddir     = 40
	msgTfsync       = 50
	msgTlock        = 52
	msgTgetlock     = 54
	msgTlink        = 70
	msgTmkdir       = 72
	msgTrenameat    = 74
	msgTunlinkat    = 76
	msgTversion     = 100
	msgTauth        = 102
	msgTattach      = 104
	msgTflush       = 108
	msgTwalk        = 110
	msgTread        = 116
	msgTwrite       = 118
	msgTclunk       = 120
	msgTremove      = 122
)

const (
	headerSize = 7 // size[4] type[1] tag[2]
	qidSize    = 13
	noFid      = 1<<32 - 1
	maxWalk    = 16 // P9_MAXWELEM
)

// Types of a qid: the high bits of what Plan 9 calls a file's mode.
const (
	qidDir     = 0x80
	qidSymlink = 0x02
	qidFile    = 0x00
)

// qid identifies a file to the guest: path is the guest's inode number, version changes with the contents.
type qid struct {
	kind    uint8
	version uint32
	path    uint64
}

// decoder takes fields off a message body. The first missing byte sets bad; later fields are then zero.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.rest) {
		d.bad = true
		return nil
	}
	field := d.rest[:n]
	d.rest = d.rest[n:]
	return field
}

func (d *decoder) u8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if b := d.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// str decodes a length of 2 bytes and so many bytes, which are copied.
func (d *decoder) str() string { return string(d.take(int(d.u16()))) }

// end reports whether the body was exactly the fields taken so far.
func (d *decoder) end() error {
	if d.bad || len(d.rest) != 0 {
		return errno.EINVAL
	}
	return nil
}

// encoder appends the fields of a reply, whose header is written last.
type encoder struct{ buf []byte }

func (e *encoder) u8(v uint8)   { e.buf = append(e.buf, v) }
func (e *encoder) u16(v uint16) { e.buf = binary.LittleEndian.AppendUint16(e.buf, v) }
func (e *encoder) u32(v uint32) { e.buf = binary.LittleEndian.AppendUint32(e.buf, v) }
func (e *encoder) u64(v uint64) { e.buf = binary.LittleEndian.AppendUint64(e.buf, v) }

func (e *encoder) str(s string) {
	e.u16(uint16(len(s)))
	e.buf = append(e.buf, s...)
}

func (e *encoder) qid(q qid) {
	e.u8(q.kind)
	e.u32(q.version)
	e.u64(q.path)
}

func (e *encoder) time(t time.Time) {
	e.u64(uint64(t.Unix()))
	e.u64(uint64(t.Nanosecond()))
}

// header fills in the first bytes once the length is known.
func (e *encoder) header(kind uint8, tag uint16) {
	binary.LittleEndian.PutUint32(e.buf, uint32(len(e.buf)))
	e.buf[4] = kind
	binary.LittleEndian.PutUint16(e.buf[5:], tag)
}

// File types of a Linux st_mode.
const (
	modeTypeMask = 0o170000
	modeSocket   = 0o140000
	modeSymlink  = 0o120000
	modeRegular  = 0o100000
	modeBlock    = 0o060000
	modeDir      = 0o040000
	modeChar     = 0o020000
	modeFIFO     = 0o010000
	modeSticky   = 0o001000
)

// linuxType returns the type bits of an st_mode.
func linuxType(mode fs.FileMode) uint32 {
	switch {
	case mode.IsRegular():
		return modeRegular
	case mode.IsDir():
		return modeDir
	case mode&fs.ModeSymlink != 0:
		return modeSymlink
	case mode&fs.ModeNamedPipe != 0:
		return modeSocket // the guest's kernel would have whoever opens a FIFO wait for another program of the guest
	case mode&fs.ModeSocket != 0:
		return modeSocket
	case mode&fs.ModeCharDevice != 0:
		return modeChar
	case mode&fs.ModeDevice != 0:
		return modeBlock
	}
	return modeRegular
}

// qidKind returns the type of a qid. Other kinds of files count as files here: the guest learns them from their mode.
func qidKind(mode fs.FileMode) uint8 {
	switch {
	case mode.IsDir():
		return qidDir
	case mode&fs.ModeSymlink != 0:
		return qidSymlink
	}
	return qidFile
}
