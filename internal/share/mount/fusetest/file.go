package fusetest

import (
	"encoding/binary"
	"io"

	"agentvm/internal/host/errno"
)

// OpenFlags are Linux's O_ values.
type OpenFlags uint32

// Ways to open a file.
const (
	ReadOnly  OpenFlags = 0
	WriteOnly OpenFlags = 1
	ReadWrite OpenFlags = 2
)

// FileMode is a Linux st_mode.
type FileMode uint32

// File types of a mode.
const (
	ModeSocket          FileMode = 0o140000
	ModeSymlink         FileMode = 0o120000
	ModeRegular         FileMode = 0o100000
	ModeBlockDevice     FileMode = 0o060000
	ModeDir             FileMode = 0o040000
	ModeCharacterDevice FileMode = 0o020000
	ModeNamedPipe       FileMode = 0o010000
	modeType            FileMode = 0o170000
)

// Permissions are the bits of access.
func (m FileMode) Permissions() FileMode { return m & 0o777 }

// IsSocket says whether m is a socket's.
func (m FileMode) IsSocket() bool { return m&modeType == ModeSocket }

// IsNamedPipe says whether m is a FIFO's.
func (m FileMode) IsNamedPipe() bool { return m&modeType == ModeNamedPipe }

// IsSymlink says whether m is a symbolic link's.
func (m FileMode) IsSymlink() bool { return m&modeType == ModeSymlink }

// IsDir says whether m is a directory's.
func (m FileMode) IsDir() bool { return m&modeType == ModeDir }

// IsCharacterDevice says whether m is a character device's.
func (m FileMode) IsCharacterDevice() bool { return m&modeType == ModeCharacterDevice }

// Attr is a struct fuse_attr.
type Attr struct {
	Inode, Size, Blocks                      uint64
	ATimeSeconds, MTimeSeconds, CTimeSeconds uint64
	ATimeNanoSeconds, MTimeNanoSeconds       uint32
	Mode                                     FileMode
	NLink, UID, GID, RDev, BlockSize         uint32
}

func decodeAttr(b []byte) Attr {
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	return Attr{
		Inode: u64(0), Size: u64(8), Blocks: u64(16), ATimeSeconds: u64(24), MTimeSeconds: u64(32), CTimeSeconds: u64(40), ATimeNanoSeconds: u32(48),
		MTimeNanoSeconds: u32(52), Mode: FileMode(u32(60)), NLink: u32(64), UID: u32(68), GID: u32(72), RDev: u32(76), BlockSize: u32(80),
	}
}

// Sizes in bytes: of struct fuse_entry_out, and where its attributes are; of struct fuse_attr_out's head.
const (
	entrySize = 128
	entryAttr = 40
	attrHead  = 16
)

// SetAttrMask says what SetAttr changes. A time without its NotSystemTime is the server's clock's.
type SetAttrMask struct {
	Permissions, UID, GID, Size, ATime, MTime, ATimeNotSystemTime, MTimeNotSystemTime bool
}

// SetAttr has the new values.
type SetAttr struct {
	Permissions                        FileMode
	UID, GID                           uint32
	Size                               uint64
	ATimeSeconds, MTimeSeconds         uint64
	ATimeNanoSeconds, MTimeNanoSeconds uint32
}

// StatFS is a struct fuse_statfs_out.
type StatFS struct {
	Blocks                uint64
	BlockSize, NameLength uint32
}

// DirentType is a DT_ value.
type DirentType uint32

// TypeRegular is DT_REG.
const TypeRegular DirentType = 8

// Dirent is an entry of a directory.
type Dirent struct {
	Inode, Offset uint64
	Type          DirentType
	Name          string
}

// File is a name that was found, and, after Open, the open file.
type File struct {
	c         *client
	id        uint64
	parent    *File // where it was found, which is closed with it; nil: the root
	name      string
	isDir     bool
	opened    bool
	handle    uint64
	KeepCache bool // of the last Open's reply: what was read before is still right
}

// ID is the number of the file's node.
func (f *File) ID() uint64 { return f.id }

// Walk finds a name below f; without names it is f again, not open.
func (f *File) Walk(names []string) (*File, error) {
	at := f.copy()
	for _, name := range names {
		b, err := f.c.call(Lookup, at.id, Body(nil).Str(name))
		if err != nil {
			at.Close()
			return nil, err
		}
		at = &File{c: f.c, parent: at, name: name}
		at.entry(b)
	}
	return at, nil
}

// copy returns another file of f's name.
func (f *File) copy() *File {
	if f == nil {
		return nil
	}
	f.c.hold(f.id)
	return &File{c: f.c, id: f.id, parent: f.parent.copy(), name: f.name, isDir: f.isDir}
}

// entry takes a struct fuse_entry_out.
func (f *File) entry(b []byte) {
	f.id = binary.LittleEndian.Uint64(b)
	f.isDir = decodeAttr(b[entryAttr:]).Mode.IsDir()
	f.c.found(f.id)
}

// made forgets at once what a reply named.
func (f *File) made(b []byte, err error) error {
	if err != nil {
		return err
	}
	made := &File{c: f.c}
	made.entry(b)
	return made.Close()
}

// Open opens the file; the flag O_DIRECTORY, or a directory that is not to be written, is FUSE_OPENDIR's.
func (f *File) Open(flags OpenFlags) error {
	const directory = 0o200000
	if f.opened {
		return errno.EINVAL
	}
	op := uint32(Open)
	if flags&directory != 0 || f.isDir && flags == ReadOnly {
		op = Opendir
	}
	b, err := f.c.call(op, f.id, Body(nil).U32(uint32(flags)).U32(0))
	if err == nil {
		f.takeOpen(b)
		f.isDir = op == Opendir
	}
	return err
}

// takeOpen takes a struct fuse_open_out.
func (f *File) takeOpen(b []byte) {
	f.opened, f.handle, f.KeepCache = true, binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])&2 != 0
}

// Create makes a file in the directory f, which becomes the open file.
func (f *File) Create(name string, flags OpenFlags, mode FileMode) error {
	b, err := f.c.call(Create, f.id, Body(nil).U32(uint32(flags)|0o100).U32(uint32(mode|ModeRegular)).U32(0).U32(0).Str(name))
	if err != nil {
		return err
	}
	dir := *f
	f.parent, f.name = &dir, name
	f.entry(b)
	f.takeOpen(b[entrySize:])
	return nil
}

// ReadAt reads as io.ReaderAt does, in requests of up to 128 KiB.
func (f *File) ReadAt(p []byte, offset int64) (int, error) {
	done := 0
	for done < len(p) {
		n := min(len(p)-done, 128<<10)
		b, err := f.c.call(Read, f.id, Body(nil).U64(f.handle).U64(uint64(offset)+uint64(done)).U32(uint32(n)).U32(0).U64(0).U32(0).U32(0))
		if err != nil {
			return done, err
		}
		if len(b) == 0 {
			return done, io.EOF
		}
		done += copy(p[done:], b)
	}
	return done, nil
}

// WriteAt writes as io.WriterAt does, in requests of up to 128 KiB.
func (f *File) WriteAt(p []byte, offset int64) (int, error) {
	done := 0
	for done < len(p) {
		data := p[done:min(len(p), done+128<<10)]
		b, err := f.c.call(Write, f.id, append(Body(nil).U64(f.handle).U64(uint64(offset)+uint64(done)).U32(uint32(len(data))).U32(0).U64(0).U32(0).U32(0), data...))
		if err != nil {
			return done, err
		}
		done += int(binary.LittleEndian.Uint32(b))
	}
	return done, nil
}

// FSync makes the server write everything back.
func (f *File) FSync() error {
	_, err := f.c.call(Fsync, f.id, Body(nil).U64(f.handle).U32(0).U32(0))
	return err
}

// GetAttr asks for the attributes.
func (f *File) GetAttr() (Attr, error) {
	b, err := f.c.call(Getattr, f.id, Body(nil).U32(0).U32(0).U64(0))
	if err != nil {
		return Attr{}, err
	}
	return decodeAttr(b[attrHead:]), nil
}

// GetXattr asks for an extended attribute in at most size bytes; 0 asks for its length, as a struct fuse_getxattr_out.
func (f *File) GetXattr(name string, size uint32) ([]byte, error) {
	return f.c.call(Getxattr, f.id, Body(nil).U32(size).U32(0).Str(name))
}

// ListXattr asks for the names of the extended attributes.
func (f *File) ListXattr(size uint32) ([]byte, error) {
	return f.c.call(Listxattr, f.id, Body(nil).U32(size).U32(0))
}

// SetAttr changes attributes.
func (f *File) SetAttr(mask SetAttrMask, set SetAttr) error {
	var valid uint32
	for bit, is := range map[uint32]bool{
		1 << 0: mask.Permissions, 1 << 1: mask.UID, 1 << 2: mask.GID, 1 << 3: mask.Size, 1 << 4: mask.ATime, 1 << 5: mask.MTime,
		1 << 7: mask.ATime && !mask.ATimeNotSystemTime, 1 << 8: mask.MTime && !mask.MTimeNotSystemTime,
	} {
		if is {
			valid |= bit
		}
	}
	_, err := f.c.call(Setattr, f.id, Body(nil).U32(valid).U32(0).U64(0).U64(set.Size).U64(0).U64(set.ATimeSeconds).U64(set.MTimeSeconds).U64(0).
		U32(set.ATimeNanoSeconds).U32(set.MTimeNanoSeconds).U32(0).U32(uint32(set.Permissions)).U32(0).U32(set.UID).U32(set.GID).U32(0))
	return err
}

// Mkdir makes a directory in f.
func (f *File) Mkdir(name string, mode FileMode) error {
	return f.made(f.c.call(Mkdir, f.id, Body(nil).U32(uint32(mode)).U32(0).Str(name)))
}

// Symlink makes a symbolic link in f.
func (f *File) Symlink(target, name string) error {
	return f.made(f.c.call(Symlink, f.id, Body(nil).Str(name).Str(target)))
}

// Mknod makes a file of any type in f.
func (f *File) Mknod(name string, mode FileMode, major, minor uint32) error {
	return f.made(f.c.call(Mknod, f.id, Body(nil).U32(uint32(mode)).U32(major<<8|minor).U32(0).U32(0).Str(name)))
}

// Link gives a file another name in f.
func (f *File) Link(old *File, name string) error {
	return f.made(f.c.call(Link, f.id, Body(nil).U64(old.id).Str(name)))
}

// RenameAt moves a name of f into another directory.
func (f *File) RenameAt(oldName string, dir *File, newName string) error {
	_, err := f.c.call(Rename, f.id, Body(nil).U64(dir.id).Str(oldName).Str(newName))
	return err
}

// Rename moves f by the name at which it was found.
func (f *File) Rename(dir *File, name string) error {
	err := f.parent.RenameAt(f.name, dir, name)
	if err == nil {
		f.parent.Close()
		f.parent, f.name = dir.copy(), name
	}
	return err
}

// RemoveDirectory is UnlinkAt's flag for a directory, AT_REMOVEDIR.
const RemoveDirectory = 0x200

// UnlinkAt removes a name of f.
func (f *File) UnlinkAt(name string, flags uint32) error {
	op := uint32(Unlink)
	if flags&RemoveDirectory != 0 {
		op = Rmdir
	}
	_, err := f.c.call(op, f.id, Body(nil).Str(name))
	return err
}

// Readlink returns a link's target.
func (f *File) Readlink() (string, error) {
	b, err := f.c.call(Readlink, f.id, nil)
	return string(b), err
}

// StatFS asks for the size of the file system.
func (f *File) StatFS() (StatFS, error) {
	b, err := f.c.call(Statfs, f.id, nil)
	if err != nil {
		return StatFS{}, err
	}
	return StatFS{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[40:]), binary.LittleEndian.Uint32(b[44:])}, nil
}

// Readdir lists an open directory from an offset on, in up to count bytes.
func (f *File) Readdir(offset uint64, count uint32) ([]Dirent, error) {
	return f.readdir(Readdir, offset, count)
}

// ReaddirPlus is Readdir with the attributes that a lookup of each name gives; it gives the references back at once.
func (f *File) ReaddirPlus(offset uint64, count uint32) ([]Dirent, error) {
	return f.readdir(Readdirplus, offset, count)
}

func (f *File) readdir(op uint32, offset uint64, count uint32) (entries []Dirent, err error) {
	b, err := f.c.call(op, f.id, Body(nil).U64(f.handle).U64(offset).U32(count).U32(0).U64(0).U32(0).U32(0))
	if err != nil {
		return nil, err
	}
	for len(b) > 0 {
		if op == Readdirplus {
			if binary.LittleEndian.Uint64(b) != 0 {
				_ = f.made(b, nil)
			}
			b = b[entrySize:]
		}
		size := int(binary.LittleEndian.Uint32(b[16:]))
		entries = append(entries, Dirent{
			Inode: binary.LittleEndian.Uint64(b), Offset: binary.LittleEndian.Uint64(b[8:]),
			Type: DirentType(binary.LittleEndian.Uint32(b[20:])), Name: string(b[24 : 24+size]),
		})
		b = b[(24+size+7)&^7:]
	}
	return entries, nil
}

// Close closes the file, if it is open, and gives the reference to its node back.
func (f *File) Close() error {
	var err error
	if f.opened {
		op := uint32(Release)
		if f.isDir {
			op = Releasedir
		}
		_, err = f.c.call(op, f.id, Body(nil).U64(f.handle).U32(0).U32(0).U64(0))
	}
	f.c.drop(f.id)
	if f.parent != nil {
		f.parent.Close()
	}
	f.id, f.parent, f.opened = 0, nil, false
	return err
}
