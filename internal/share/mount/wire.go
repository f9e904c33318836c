package mount

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"time"

	"agentvm/internal/host/errno"
)

// Requests of FUSE that this server answers, as Linux's include/uapi/linux/fuse.h numbers them. A request begins with len[4] opcode[4]
// unique[8] nodeid[8] uid[4] gid[4] pid[4] extensions[2] padding[2], a reply with len[4] error[4] unique[8]; everything is little-endian.
const (
	opLookup      = 1
	opForget      = 2 // without a reply
	opGetattr     = 3
	opSetattr     = 4
	opReadlink    = 5
	opSymlink     = 6
	opMknod       = 8
	opMkdir       = 9
	opUnlink      = 10
	opRmdir       = 11
	opRename      = 12
	opLink        = 13
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatfs      = 17
	opRelease     = 18
	opFsync       = 20
	opSetxattr    = 21
	opGetxattr    = 22
	opListxattr   = 23
	opRemovexattr = 24
	opFlush       = 25
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opFsyncdir    = 30
	opGetlk       = 31
	opSetlk       = 32
	opSetlkw      = 33
	opCreate      = 35
	opInterrupt   = 36 // without a reply
	opDestroy     = 38
	opBatchForget = 42 // without a reply
	opReaddirplus = 44
	maxOp         = opReaddirplus
	opHostEvents  = 8192 // of the guest's kernel: see hostEvents
)

const (
	requestHeader = 40
	replyHeader   = 16
	rootID        = 1 // the node of the mounted directory
)

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

// str takes a text that ends with a NUL.
func (d *decoder) str() string {
	i := bytes.IndexByte(d.rest, 0)
	if field := d.take(i + 1); len(field) > 0 {
		return string(field[:i])
	}
	d.bad = true
	return ""
}

// end reports whether the body was exactly the fields taken so far.
func (d *decoder) end() error {
	if d.bad || len(d.rest) != 0 {
		return errno.EINVAL
	}
	return nil
}

// encoder appends the fields of a reply, whose header is written last.
type encoder struct{ buf []byte }

func (e *encoder) u16(v uint16) { e.buf = binary.LittleEndian.AppendUint16(e.buf, v) }
func (e *encoder) u32(v uint32) { e.buf = binary.LittleEndian.AppendUint32(e.buf, v) }
func (e *encoder) u64(v uint64) { e.buf = binary.LittleEndian.AppendUint64(e.buf, v) }

// header fills in the first bytes once the length is known.
func (e *encoder) header(err errno.Errno, unique uint64) {
	binary.LittleEndian.PutUint32(e.buf, uint32(len(e.buf)))
	binary.LittleEndian.PutUint32(e.buf[4:], uint32(-int32(err)))
	binary.LittleEndian.PutUint64(e.buf[8:], unique)
}

// attrSize is the size in bytes of struct fuse_attr.
const attrSize = 88

// attrNoXattr, of fuse_attr's flags, is agentvm's: the file has no extended attributes that the guest could read.
const attrNoXattr = 1 << 31

// attr appends a struct fuse_attr: ino[8] size[8] blocks[8] atime[8] mtime[8] ctime[8] atimensec[4] mtimensec[4] ctimensec[4] mode[4]
// nlink[4] uid[4] gid[4] rdev[4] blksize[4] flags[4]. Device numbers of the host mean nothing in the guest.
func (e *encoder) attr(a attr, uid, gid uint32) {
	times := [...]time.Time{a.host.Accessed, a.mtime, a.host.Changed}
	e.u64(a.ino)
	e.u64(a.size)
	e.u64(a.host.Blocks)
	for _, t := range times {
		e.u64(uint64(t.Unix()))
	}
	for _, t := range times {
		e.u32(uint32(t.Nanosecond()))
	}
	var flags uint32
	if a.plain {
		flags = attrNoXattr
	}
	for _, v := range [...]uint32{a.mode, uint32(a.host.Links), uid, gid, 0, uint32(a.host.BlockSize), flags} {
		e.u32(v)
	}
}

// validity splits a time as the messages do.
func validity(d time.Duration) (seconds uint64, nanoseconds uint32) {
	return uint64(d / time.Second), uint32(d % time.Second)
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
		return modeFIFO
	case mode&fs.ModeSocket != 0:
		return modeSocket
	case mode&fs.ModeCharDevice != 0:
		return modeChar
	case mode&fs.ModeDevice != 0:
		return modeBlock
	}
	return modeRegular
}
