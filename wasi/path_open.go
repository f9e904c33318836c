package wasi

import (
	"context"
	"io/fs"
	"os"

	"github.com/tetratelabs/wazero/api"
)

// Open flags (witx "oflags").
const (
	oflagCreat = 1 << iota
	oflagDirectory
	oflagExcl
	oflagTrunc
	oflagsEnd
)

// rightsOpeningWrite are the rights for which the host's file must be open for writing.
const rightsOpeningWrite = RightFdWrite | RightFdAllocate | RightFdFilestatSetSize

// openRequest is path_open's parameters, decoded.
type openRequest struct {
	location
	follow bool
	oflags uint16
	flags  Fdflags
	rights Rights // asked for
	grant  Rights // the directory's inheriting rights
}

func pathOpen(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	r, errno := s.openRequest(mod, stack)
	if errno != ErrnoSuccess {
		return errno
	}
	if _, ok := view(mod, uint32(stack[8]), 4); !ok {
		return ErrnoFault // before there is a descriptor that the guest would never learn of
	}
	d, errno := r.open()
	if errno != ErrnoSuccess {
		return errno
	}
	fd, errno := s.insert(d)
	if errno != ErrnoSuccess {
		return errno
	}
	return putUint32(mod, uint32(stack[8]), fd)
}

// openRequest decodes and checks what can be checked without looking at the file.
func (s *System) openRequest(mod api.Module, stack []uint64) (openRequest, Errno) {
	r := openRequest{
		follow: stack[1]&lookupSymlinkFollow != 0,
		oflags: uint16(stack[4]), rights: Rights(stack[5]), flags: Fdflags(stack[7]),
	}
	making := r.oflags & (oflagCreat | oflagExcl | oflagTrunc)
	if r.oflags >= oflagsEnd || r.flags >= fdflagsEnd || r.has(oflagDirectory) && making != 0 {
		return r, ErrnoInval
	}
	needed := RightPathOpen
	if r.has(oflagCreat) {
		needed |= RightPathCreateFile
	}
	if r.has(oflagTrunc) {
		needed |= RightPathFilestatSetSize
	}
	var errno Errno
	// A read-only directory lets O_CREAT pass for a file that exists; open refuses the rest.
	if r.location, errno = s.locate(mod, stack[0], stack[2], stack[3], RightPathOpen); errno != ErrnoSuccess {
		return r, errno
	}
	d, errno := s.lookup(uint32(stack[0]))
	if errno != ErrnoSuccess {
		return r, errno
	}
	r.grant = d.inheriting
	if d.base&needed != needed || r.rights&^d.inheriting&(RightFdRead|RightFdWrite) != 0 {
		return r, ErrnoPerm
	}
	return r, ErrnoSuccess
}

// has says whether all the given open flags are set.
func (r *openRequest) has(flags uint16) bool { return r.oflags&flags == flags }

// writes says whether the host's file must be open for writing.
func (r *openRequest) writes() bool {
	return r.rights&rightsOpeningWrite != 0 || r.has(oflagTrunc)
}

// open looks at what is there and opens it. Between the look and the opening the file may change; then os.Root's own
// checks decide, and the errno may be another.
func (r *openRequest) open() (*descriptor, Errno) {
	info, errno := r.stat(r.follow)
	if r.has(oflagCreat | oflagExcl) {
		info, errno = r.location.stat(false)
		if errno == ErrnoSuccess {
			return nil, ErrnoExist
		}
	}
	switch {
	case errno == ErrnoNoent && r.has(oflagCreat):
		if r.readonly {
			return nil, ErrnoRofs
		}
		if r.slash {
			return nil, ErrnoIsdir
		}
		return r.openFile() // possibly where a dangling symbolic link points to
	case errno != ErrnoSuccess:
		return nil, errno
	case info.IsDir():
		return r.openDir()
	case r.has(oflagDirectory):
		return nil, ErrnoNotdir
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, ErrnoLoop
	case info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0:
		return nil, ErrnoNotsup // opening would wait for the other side
	}
	return r.openFile()
}

// openDir opens a directory.
func (r *openRequest) openDir() (*descriptor, Errno) {
	if r.has(oflagTrunc) || r.has(oflagCreat) || r.rights&RightFdWrite != 0 {
		return nil, ErrnoIsdir
	}
	root, err := r.root.OpenRoot(r.path)
	if err != nil {
		return nil, errnoOf(err)
	}
	d := newDescriptor(&dir{root: root, readonly: r.readonly})
	d.base &= r.grant
	d.inheriting = r.grant
	d.flags = r.flags
	return d, ErrnoSuccess
}

// openFile opens or creates a file that is not a directory.
func (r *openRequest) openFile() (*descriptor, Errno) {
	if r.readonly && r.writes() {
		return nil, ErrnoRofs
	}
	f, err := r.root.OpenFile(r.path, r.hostFlags(), 0o666)
	if err != nil {
		return nil, errnoOf(err)
	}
	d := newDescriptor(&osFile{f: f, append: r.flags&FdAppend != 0, flags: r.flags, readonly: r.readonly})
	d.base &= r.grant
	d.base &^= (RightFdRead | RightFdWrite) &^ r.rights
	return d, ErrnoSuccess
}

// hostFlags translates access mode and flags. APPEND is not among them; osFile does it.
func (r *openRequest) hostFlags() int {
	flags := os.O_RDONLY
	if r.writes() {
		flags = os.O_RDWR
		if r.rights&RightFdRead == 0 {
			flags = os.O_WRONLY
		}
	}
	for _, o := range [...]struct {
		guest uint16
		host  int
	}{{oflagCreat, os.O_CREATE}, {oflagExcl, os.O_EXCL}, {oflagTrunc, os.O_TRUNC}} {
		if r.has(o.guest) {
			flags |= o.host
		}
	}
	if r.flags&(FdSync|FdDsync|FdRsync) != 0 {
		flags |= os.O_SYNC
	}
	return flags
}
