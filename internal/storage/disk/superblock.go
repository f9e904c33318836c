package disk

import (
	"encoding/binary"
	"fmt"
	"io"
)

// These are the fields of ext4 that a new disk changes: Linux, Documentation/filesystems/ext4/super.rst and group_descr.rst.
// Numbers are little-endian. The template has group descriptors with a CRC-16 (uninit_bg), which covers the file system's
// identifier, and no checksums of other metadata (metadata_csum).
const (
	superblockAt   = 1024
	superblockSize = 1024
	superMagic     = 0xef53

	fieldBlocks    = 0x04 // u32, low half
	fieldLogBlock  = 0x18 // u32, 2 is 4 KiB
	fieldPerGroup  = 0x20 // u32, blocks
	fieldMagic     = 0x38 // u16
	fieldUUID      = 0x68 // 16 bytes
	fieldHashSeed  = 0xec // 16 bytes: 4 words for the hashes of directories
	descriptorSize = 64
	fieldGroupSum  = 0x1e // u16, in the descriptor
)

// setIdentifiers gives a new file system an identifier and a hash seed of its own, also in the copies of its superblock and of its group
// descriptors. blocks are those that are not zeros, by number.
func setIdentifiers(blocks map[uint32][]byte, random io.Reader) error {
	super := blocks[0][superblockAt:]
	for _, field := range [][]byte{super[fieldUUID : fieldUUID+16], super[fieldHashSeed : fieldHashSeed+16]} {
		if _, err := io.ReadFull(random, field); err != nil {
			return fmt.Errorf("identifier: %w", err)
		}
		field[6] = field[6]&0x0f | 0x40 // RFC 9562 section 5.4: version 4
		field[8] = field[8]&0x3f | 0x80
	}
	perGroup := binary.LittleEndian.Uint32(super[fieldPerGroup:])
	groups := (binary.LittleEndian.Uint32(super[fieldBlocks:]) + perGroup - 1) / perGroup
	const inBlock = blockSize / descriptorSize
	for group := range groups {
		descriptor := blocks[1+group/inBlock][group%inBlock*descriptorSize:][:descriptorSize]
		binary.LittleEndian.PutUint16(descriptor[fieldGroupSum:], groupSum(super[fieldUUID:fieldUUID+16], group, descriptor))
	}
	for group := uint32(1); group < groups; group++ {
		first := group * perGroup
		other := blocks[first]
		if other == nil || binary.LittleEndian.Uint16(other[fieldMagic:]) != superMagic {
			continue
		}
		copy(other[fieldUUID:], super[fieldUUID:fieldUUID+16])
		copy(other[fieldHashSeed:], super[fieldHashSeed:fieldHashSeed+16])
		for i := uint32(1); i <= (groups+inBlock-1)/inBlock; i++ {
			copy(blocks[first+i], blocks[i])
		}
	}
	return nil
}

// groupSum returns the checksum of a group's descriptor without the field that holds it.
func groupSum(uuid []byte, group uint32, descriptor []byte) uint16 {
	sum := crc16(0xffff, uuid)
	sum = crc16(sum, binary.LittleEndian.AppendUint32(nil, group))
	sum = crc16(sum, descriptor[:fieldGroupSum])
	return crc16(sum, descriptor[fieldGroupSum+2:])
}

// crc16 continues a CRC-16/ARC: polynomial 0x8005, bits reflected.
func crc16(sum uint16, p []byte) uint16 {
	for _, b := range p {
		sum ^= uint16(b)
		for range 8 {
			sum = sum>>1 ^ sum&1*0xa001
		}
	}
	return sum
}

// wrong returns why a file of size bytes that begins with begin is not a disk, or nothing. It does not check other fields, which the guest
// may change.
func wrong(begin []byte, size int64) string {
	if len(begin) < superblockAt+superblockSize {
		return "it is too short"
	}
	super := begin[superblockAt:]
	if binary.LittleEndian.Uint16(super[fieldMagic:]) != superMagic {
		return "it has no ext4 file system, because it was left half made or because its guest has overwritten it"
	}
	blocks := int64(binary.LittleEndian.Uint32(super[fieldBlocks:]))
	if binary.LittleEndian.Uint32(super[fieldLogBlock:]) == 2 && blocks > size/blockSize {
		return fmt.Sprintf("its file system has %d bytes, the file only %d: it has been cut", blocks*blockSize, size)
	}
	return ""
}
