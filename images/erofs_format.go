package images

import (
	"encoding/binary"
	"hash/crc32"
)

// The on-disk format of EROFS as the Linux kernel documents it (Documentation/filesystems/erofs.rst and
// fs/erofs/erofs_fs.h), restricted to what an uncompressed root disk needs.
const (
	blockSize   = 4096
	blockBits   = 12
	inodeSize   = 64 // extended form: the compact form has no modification time of its own
	slotSize    = 32 // an inode's number is its offset in the metadata area in units of this
	direntSize  = 12
	superOffset = 1024
	superSize   = 128

	superMagic             = 0xE0F5E1E2
	featureChecksum        = 0x1 // compatible: the superblock carries a CRC-32C of its block
	featureChunked         = 0x4 // incompatible: some files are chunk-based (they have holes)
	layoutPlain            = 0
	layoutInline           = 2
	layoutChunked          = 4
	inodeExtended          = 1
	xattrHeaderSize        = 12
	xattrEntrySize         = 4
	chunkIndexes           = 1 << 5 // chunks are described by 8-byte indexes, not by 4-byte block numbers
	chunkIndexSize         = 8
	maxXattrBody           = xattrHeaderSize + 65534*4
	noBlock         uint32 = 0xFFFFFFFF // a chunk without data: reads as zeros
)

// Type bits of i_mode, as in <linux/stat.h>.
const (
	typeMask    = 0xF000
	typeFIFO    = 0x1000
	typeChar    = 0x2000
	typeDir     = 0x4000
	typeBlock   = 0x6000
	typeRegular = 0x8000
	typeSymlink = 0xA000
)

// direntType maps i_mode's type bits to the file_type byte of a directory entry.
func direntType(mode uint16) byte {
	switch mode & typeMask {
	case typeRegular:
		return 1
	case typeDir:
		return 2
	case typeChar:
		return 3
	case typeBlock:
		return 4
	case typeFIFO:
		return 5
	case typeSymlink:
		return 7
	}
	return 0
}

// deviceNumber encodes major and minor as the kernel's new_encode_dev does.
func deviceNumber(major, minor uint32) uint32 {
	return minor&0xFF | major<<8 | (minor&^0xFF)<<12
}

// superblock has the fields that vary between our images.
type superblock struct {
	rootSlot  uint16 // root_nid
	inodes    uint64
	mtime     int64
	blocks    uint32
	metaBlock uint32
	chunked   bool
}

// encode returns block 0: a free kibibyte for boot code, the superblock, and zeros.
func (s superblock) encode() []byte {
	block := make([]byte, blockSize)
	b := block[superOffset:]
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	le.PutUint32(b[8:], featureChecksum)
	b[12] = blockBits
	le.PutUint16(b[14:], s.rootSlot)
	le.PutUint64(b[16:], s.inodes)
	le.PutUint64(b[24:], uint64(s.mtime))
	le.PutUint32(b[36:], s.blocks)
	le.PutUint32(b[40:], s.metaBlock)
	if s.chunked {
		le.PutUint32(b[80:], featureChunked)
	}
	// The kernel's crc32c takes ~0 and does not invert the result; Go's inverts.
	le.PutUint32(b[4:], ^crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return block
}

// encodeInode appends the 64-byte extended inode of n.
func encodeInode(dst []byte, n *node, serial uint32) []byte {
	var b [inodeSize]byte
	le := binary.LittleEndian
	le.PutUint16(b[0:], inodeExtended|uint16(n.layout)<<1)
	if len(n.xattrs) > 0 {
		le.PutUint16(b[2:], uint16((len(n.xattrs)-xattrHeaderSize)/4+1))
	}
	le.PutUint16(b[4:], n.mode)
	le.PutUint64(b[8:], n.size)
	le.PutUint32(b[16:], n.union())
	le.PutUint32(b[20:], serial)
	le.PutUint32(b[24:], n.uid)
	le.PutUint32(b[28:], n.gid)
	le.PutUint64(b[32:], uint64(n.mtime))
	le.PutUint32(b[40:], n.mtimeNsec)
	le.PutUint32(b[44:], n.nlink)
	return append(dst, b[:]...)
}

// encodeDirents appends one directory block: the fixed entries, then the names. Only the caller knows whether
// padding follows.
func encodeDirents(dst []byte, names []string, slots []uint64, types []byte) []byte {
	le := binary.LittleEndian
	offset := len(names) * direntSize
	for i, name := range names {
		var b [direntSize]byte
		le.PutUint64(b[0:], slots[i])
		le.PutUint16(b[8:], uint16(offset))
		b[10] = types[i]
		dst = append(dst, b[:]...)
		offset += len(name)
	}
	for _, name := range names {
		dst = append(dst, name...)
	}
	return dst
}
