package wasi

// Filetype is what kind of file a descriptor or directory entry refers to (witx "filetype").
type Filetype uint8

// The kinds of preview 1.
const (
	FiletypeUnknown Filetype = iota
	FiletypeBlockDevice
	FiletypeCharacterDevice
	FiletypeDirectory
	FiletypeRegularFile
	FiletypeSocketDgram
	FiletypeSocketStream
	FiletypeSymbolicLink
)

// Fdflags are the status flags of a descriptor (witx "fdflags").
type Fdflags uint16

// The flags of preview 1.
const (
	FdAppend Fdflags = 1 << iota
	FdDsync
	FdNonblock
	FdRsync
	FdSync
	fdflagsEnd
)

// Rights say which calls a descriptor permits (witx "rights").
type Rights uint64

// The rights of preview 1, one bit each.
const (
	RightFdDatasync Rights = 1 << iota
	RightFdRead
	RightFdSeek
	RightFdFdstatSetFlags
	RightFdSync
	RightFdTell
	RightFdWrite
	RightFdAdvise
	RightFdAllocate
	RightPathCreateDirectory
	RightPathCreateFile
	RightPathLinkSource
	RightPathLinkTarget
	RightPathOpen
	RightFdReaddir
	RightPathReadlink
	RightPathRenameSource
	RightPathRenameTarget
	RightPathFilestatGet
	RightPathFilestatSetSize
	RightPathFilestatSetTimes
	RightFdFilestatGet
	RightFdFilestatSetSize
	RightFdFilestatSetTimes
	RightPathSymlink
	RightPathRemoveDirectory
	RightPathUnlinkFile
	RightPollFdReadwrite
	RightSockShutdown
	RightSockAccept
	rightsEnd
)

// Sets of rights by what a descriptor refers to.
const (
	rightsAll       = rightsEnd - 1
	rightsStream    = RightFdRead | RightFdWrite | RightFdFdstatSetFlags | RightFdFilestatGet | RightPollFdReadwrite | RightFdSync | RightFdDatasync
	rightsSocket    = rightsStream | RightSockShutdown | RightSockAccept
	rightsFile      = rightsStream | RightFdSeek | RightFdTell | RightFdAdvise | RightFdAllocate | RightFdFilestatSetSize | RightFdFilestatSetTimes
	rightsDirectory = RightFdDatasync | RightFdSync | RightFdReaddir | RightFdFilestatGet | RightFdFilestatSetTimes |
		RightPathCreateDirectory | RightPathCreateFile | RightPathLinkSource | RightPathLinkTarget | RightPathOpen | RightPathReadlink |
		RightPathRenameSource | RightPathRenameTarget | RightPathFilestatGet | RightPathFilestatSetSize | RightPathFilestatSetTimes |
		RightPathSymlink | RightPathRemoveDirectory | RightPathUnlinkFile
	rightsInheriting = rightsDirectory | rightsFile
	// rightsWriting are those that a read-only directory refuses with ErrnoRofs. They are shown all the same, because a
	// guest's library would otherwise drop them from its request and get another error later.
	rightsWriting = RightFdWrite | RightFdAllocate | RightPathCreateDirectory | RightPathCreateFile | RightPathLinkSource |
		RightPathLinkTarget | RightPathRenameSource | RightPathRenameTarget | RightPathFilestatSetSize | RightPathFilestatSetTimes |
		RightFdFilestatSetSize | RightFdFilestatSetTimes | RightPathSymlink | RightPathRemoveDirectory | RightPathUnlinkFile
)

// Filestat describes a file (witx "filestat"). Size is in bytes, times are nanoseconds since the Unix epoch.
type Filestat struct {
	Dev, Ino         uint64
	Type             Filetype
	Nlink            uint64
	Size             uint64
	Atim, Mtim, Ctim uint64
}

const (
	filestatSize = 64
	fdstatSize   = 24
)

// put encodes the structure's 64 bytes.
func (st *Filestat) put(b []byte) {
	_ = b[filestatSize-1]
	le.PutUint64(b[0:], st.Dev)
	le.PutUint64(b[8:], st.Ino)
	le.PutUint64(b[16:], uint64(st.Type))
	le.PutUint64(b[24:], st.Nlink)
	le.PutUint64(b[32:], st.Size)
	le.PutUint64(b[40:], st.Atim)
	le.PutUint64(b[48:], st.Mtim)
	le.PutUint64(b[56:], st.Ctim)
}
