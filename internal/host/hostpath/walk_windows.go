package hostpath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// A directory that is open here for listing and not shared for deletion can be neither renamed nor replaced: so a path below it means
// the same as a name in it.

// openHandle opens the file at a path, without following a link there.
func openHandle(path string, access, share, disposition, flags uint32) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(long(path))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	h, err := windows.CreateFile(name, access, share, nil, disposition, flags|windows.FILE_FLAG_OPEN_REPARSE_POINT|windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(h), path), nil
}

// long returns the spelling of a path for which the limit of 260 characters does not hold.
func long(path string) string {
	if len(path) < 248 || len(path) > 3 && path[:2] == `\\` {
		return path
	}
	return `\\?\` + path
}

// openPinned opens a directory so that it cannot be renamed, or another file for its attributes.
func openPinned(path string) (*os.File, error) {
	const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE
	file, err := openHandle(path, windows.FILE_READ_ATTRIBUTES|windows.FILE_LIST_DIRECTORY|windows.SYNCHRONIZE, share, windows.OPEN_EXISTING, 0)
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
		return openHandle(path, windows.FILE_READ_ATTRIBUTES, share|windows.FILE_SHARE_DELETE, windows.OPEN_EXISTING, 0)
	}
	return file, err
}

func openRoot(volume string) (entry, error) {
	file, err := openPinned(volume + `\`)
	if err != nil {
		return entry{}, err
	}
	return look("", volume+`\`, file)
}

// attributeTag is FILE_ATTRIBUTE_TAG_INFO.
type attributeTag struct{ attributes, tag uint32 }

// look returns what an open file is. It keeps the file open only if it is a directory.
func look(name, path string, file *os.File) (found entry, err error) {
	defer func() {
		if err != nil || found.file == nil {
			file.Close()
		}
	}()
	h := windows.Handle(file.Fd())
	var of windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &of); err != nil {
		return found, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	found = entry{step: step{id: fileID{uint64(of.VolumeSerialNumber), uint64(of.FileIndexHigh)<<32 | uint64(of.FileIndexLow)}, name: name}}
	var tag attributeTag
	if of.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		err := windows.GetFileInformationByHandleEx(h, windows.FileAttributeTagInfo, (*byte)(unsafe.Pointer(&tag)), uint32(unsafe.Sizeof(tag)))
		if err != nil {
			return found, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
	switch {
	case tag.tag == windows.IO_REPARSE_TAG_SYMLINK || tag.tag == windows.IO_REPARSE_TAG_MOUNT_POINT:
		found.mode = fs.ModeSymlink
		found.target, err = os.Readlink(path)
	case of.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0:
		found.mode, found.file = fs.ModeDir, file
	case tag.tag == ioReparseTagAFUnix:
		found.mode = fs.ModeSocket
	}
	return found, err
}

const ioReparseTagAFUnix = 0x80000023

func lookup(_ entry, path, name string) (entry, error) {
	whole := filepath.Join(path, name)
	file, err := openPinned(whole)
	if err != nil {
		return entry{}, err
	}
	return look(name, whole, file)
}

func idOf(file *os.File, _ fs.FileInfo) (fileID, error) {
	var of windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(file.Fd()), &of); err != nil {
		return fileID{}, err
	}
	return fileID{uint64(of.VolumeSerialNumber), uint64(of.FileIndexHigh)<<32 | uint64(of.FileIndexLow)}, nil
}

// openBase opens the file. Its directory is held, so its path leads to the name in it.
func (p *Place) openBase(flags int, _ fs.FileMode) (*os.File, error) {
	var access uint32
	switch flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) {
	case os.O_RDONLY:
		access = windows.GENERIC_READ
	case os.O_WRONLY:
		access = windows.GENERIC_WRITE
	case os.O_RDWR:
		access = windows.GENERIC_READ | windows.GENERIC_WRITE
	}
	if flags&os.O_APPEND != 0 {
		access = access&^windows.GENERIC_WRITE | windows.FILE_APPEND_DATA | windows.FILE_READ_ATTRIBUTES | windows.SYNCHRONIZE
	}
	disposition := uint32(windows.OPEN_EXISTING)
	if p.Missing {
		disposition = windows.CREATE_NEW
	}
	return openHandle(p.Real, access, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE, disposition, 0)
}
