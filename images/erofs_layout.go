package images

import (
	"encoding/binary"
	"io"
	"maps"
	"slices"
	"strings"
)

/*
A root disk, in the order it is written (block 0 comes last, when the rest is known):

	block 0     superblock
	block 1..   contents of files, in the archive's order, each from a block of its own
	            directory blocks that do not fit beside their inode
	metaBlock.. inodes from the root down, level by level, each followed by its attributes and its inline data

Inodes stand together so that a boot, which looks at many and reads few files, asks for few blocks.
*/

// diskBuilder collects a tree and lays it out as one EROFS disk. Contents stay where the layers are kept; memory holds
// the tree and the places of the contents. The same calls give the same bytes.
type diskBuilder struct {
	data *dataWriter
	root *node

	layers int      // that have been added, with the one that is being added
	plain  []string // digests of the plain archives
	used   usage
}

func newDiskBuilder(own io.Writer) *diskBuilder {
	root := newDir(nil)
	root.parent = root
	return &diskBuilder{data: newDataWriter(own), root: root}
}

// finish writes everything but contents and returns the disk's size in bytes.
func (b *diskBuilder) finish() (int64, error) {
	nodes := b.nodes()
	for _, n := range nodes {
		if n.isDir() {
			b.planDirectory(n)
		}
	}
	placeInodes(nodes)
	for _, n := range nodes {
		if n.isDir() {
			if err := b.writeDirectory(n); err != nil {
				return 0, err
			}
		}
	}
	return b.writeMetadata(nodes)
}

// nodes lists every inode once, level by level, each level by name, and fixes the entries of each directory.
func (b *diskBuilder) nodes() []*node {
	order := []*node{b.root}
	listed := map[*node]bool{} // files with several names
	for i := 0; i < len(order); i++ {
		dir := order[i]
		if !dir.isDir() {
			continue
		}
		for _, name := range dir.fixEntries() {
			child := dir.children[name]
			if child.nlink > 1 && !child.isDir() {
				if listed[child] {
					continue
				}
				listed[child] = true
			}
			order = append(order, child)
		}
	}
	return order
}

// fixEntries sets the order of a directory's entries and its number of links, and returns the names of its children.
func (dir *node) fixEntries() []string {
	children := slices.Sorted(maps.Keys(dir.children))
	dir.nlink = 2
	for _, child := range dir.children {
		if child.isDir() {
			dir.nlink++
		}
	}
	dir.names = append(slices.Clone(children), ".", "..")
	slices.Sort(dir.names) // "." is not always first: the kernel searches by plain byte order
	return children
}

// planDirectory sets the size and layout of a directory and takes its blocks. The blocks are written later, when
// inode numbers are known, in the same order.
func (b *diskBuilder) planDirectory(n *node) {
	ends := dirBlocks(n.names)
	last := direntBytes(n.names[start(ends, len(ends)-1):])
	n.size = uint64(len(ends)-1)*blockSize + uint64(last)
	n.layout, n.block = layoutPlain, b.data.next
	taken := len(ends)
	if inodeSize+len(n.xattrs)+last <= blockSize {
		n.layout = layoutInline
		taken--
	}
	b.data.next += uint32(taken)
}

// dirBlocks splits a directory into blocks: the index one past the last entry of each.
func dirBlocks(names []string) []int {
	var ends []int
	used := 0
	for i, name := range names {
		need := direntSize + len(name)
		if used+need > blockSize {
			ends = append(ends, i)
			used = 0
		}
		used += need
	}
	return append(ends, len(names))
}

func start(ends []int, i int) int {
	if i == 0 {
		return 0
	}
	return ends[i-1]
}

func direntBytes(names []string) int {
	total := len(names) * direntSize
	for _, name := range names {
		total += len(name)
	}
	return total
}

// placeInodes gives each inode its number. Neither an inode nor its inline data may cross a block. The first slots
// stay free: readers take inode number 0 for "no file".
func placeInodes(nodes []*node) {
	position := uint64(inodeSize)
	for _, n := range nodes {
		whole := uint64(inodeSize) // bytes that must be in one block
		if n.layout == layoutInline {
			whole += uint64(len(n.xattrs)) + inlineBytes(n)
		}
		if position%blockSize+whole > blockSize {
			position += blockSize - position%blockSize
		}
		n.slot = position / slotSize
		position += inodeSize + uint64(len(n.xattrs)) + inlineBytes(n)
		if len(n.chunks) > 0 {
			position = (position+chunkIndexSize-1)&^(chunkIndexSize-1) + uint64(len(n.chunks))*chunkIndexSize
		}
		position = (position + slotSize - 1) &^ (slotSize - 1)
	}
}

// inlineBytes returns the length of the data that follows n's inode.
func inlineBytes(n *node) uint64 {
	if n.layout != layoutInline {
		return 0
	}
	return n.size % blockSize
}

// writeDirectory encodes n's blocks and keeps the last one for the inode when it is inline.
func (b *diskBuilder) writeDirectory(n *node) error {
	ends := dirBlocks(n.names)
	for i, end := range ends {
		names := n.names[start(ends, i):end]
		block := n.encodeBlock(names)
		if i == len(ends)-1 && n.layout == layoutInline {
			n.inline = block
			return nil
		}
		if err := b.data.own((int64(n.block)+int64(i))*blockSize, block, blockSize); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) encodeBlock(names []string) []byte {
	slots, types := make([]uint64, len(names)), make([]byte, len(names))
	for i, name := range names {
		child := n.children[name]
		switch name {
		case ".":
			child = n
		case "..":
			child = n.parent
		}
		slots[i], types[i] = child.slot, direntType(child.mode)
	}
	return encodeDirents(nil, names, slots, types)
}

// writeMetadata writes the inodes and, last, the superblock, without which the file is not a disk.
func (b *diskBuilder) writeMetadata(nodes []*node) (int64, error) {
	w := b.data
	metaBlock, position := w.next, uint64(0)
	begin := int64(metaBlock) * blockSize
	var block []byte // what is not stored yet: less than two blocks, or one inode
	store := func(size int) error {
		err := w.own(begin, block, size)
		begin, block = begin+int64(size), block[:0]
		return err
	}
	for i, n := range nodes {
		block = append(block, zeros[:n.slot*slotSize-position]...)
		block = append(block, n.record(uint32(i+1))...)
		position = uint64(begin) - uint64(metaBlock)*blockSize + uint64(len(block))
		if len(block) >= blockSize {
			if err := store(len(block)); err != nil {
				return 0, err
			}
		}
	}
	blocks := uint32((position + blockSize - 1) / blockSize)
	if err := store(int(int64(metaBlock+blocks)*blockSize - begin)); err != nil {
		return 0, err
	}
	super := superblock{
		rootSlot: uint16(b.root.slot), inodes: uint64(len(nodes)), mtime: b.root.mtime,
		blocks: metaBlock + blocks, metaBlock: metaBlock, chunked: w.chunked,
	}
	if err := w.own(0, super.encode(), blockSize); err != nil {
		return 0, err
	}
	last := len(w.extents) - 1
	w.extents = slices.Insert(w.extents[:last:last], 0, w.extents[last])
	return int64(super.blocks) * blockSize, nil
}

// record returns n's inode with its attributes and its inline data.
func (n *node) record(serial uint32) []byte {
	b := encodeInode(make([]byte, 0, inodeSize+len(n.xattrs)+len(n.inline)+chunkIndexSize*(len(n.chunks)+1)), n, serial)
	b = append(b, n.xattrs...)
	if n.layout == layoutInline {
		b = append(b, n.inline...)
	}
	if len(n.chunks) > 0 {
		b = append(b, zeros[:-len(b)&(chunkIndexSize-1)]...)
	}
	for _, block := range n.chunks {
		b = binary.LittleEndian.AppendUint32(b, 0) // device 0: this disk
		b = binary.LittleEndian.AppendUint32(b, block)
	}
	return b
}

// xattrPrefixes are the namespaces that EROFS can store, by the number that stands for them on disk.
var xattrPrefixes = []struct {
	index  byte
	prefix string
}{
	{1, "user."}, {2, "system.posix_acl_access"}, {3, "system.posix_acl_default"}, {4, "trusted."}, {6, "security."},
}

// splitXattr returns the number of name's namespace and the rest of it. For names of other namespaces, which Linux
// would refuse to set as well, it returns false.
func splitXattr(name string) (byte, string, bool) {
	for _, p := range xattrPrefixes {
		if rest, ok := strings.CutPrefix(name, p.prefix); ok {
			return p.index, rest, true
		}
	}
	return 0, "", false
}

// appendXattr appends one encoded attribute, padded to four bytes.
func appendXattr(dst []byte, index byte, name, value string) []byte {
	dst = append(dst, byte(len(name)), index)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(value)))
	dst = append(append(dst, name...), value...)
	return append(dst, zeros[:-len(dst)&3]...)
}
