package wasi

import "slices"

// descriptor is an entry of the table. The fields besides file are the guest's; the calling goroutine alone touches them.
type descriptor struct {
	file             File
	reader           Reader // file's optional interfaces that the hot calls use, asserted once
	writer           Writer
	readerAt         ReaderAt
	writerAt         WriterAt
	flags            Fdflags
	base, inheriting Rights
	preopen          bool
	name             string // of a preopen
}

// newDescriptor returns an entry with all rights that make sense for f.
func newDescriptor(f File) *descriptor {
	d := &descriptor{file: f}
	d.reader, _ = f.(Reader)
	d.writer, _ = f.(Writer)
	d.readerAt, _ = f.(ReaderAt)
	d.writerAt, _ = f.(WriterAt)
	d.base = d.rightsOf()
	if _, ok := f.(*dir); ok {
		d.inheriting = rightsInheriting
	}
	if fl, ok := f.(Flagger); ok {
		d.flags = fl.Fdflags()
	}
	return d
}

// rightsOf returns the rights that d's file can make use of.
func (d *descriptor) rightsOf() Rights {
	rights := rightsStream
	if _, ok := d.file.(*dir); ok {
		return rightsDirectory
	} else if _, ok := d.file.(Seeker); ok || d.readerAt != nil {
		rights = rightsFile
	} else if _, ok := d.file.(halfCloser); ok {
		rights = rightsSocket
	}
	if d.reader == nil && d.readerAt == nil {
		rights &^= RightFdRead
	}
	if d.writer == nil && d.writerAt == nil {
		rights &^= RightFdWrite
	}
	return rights
}

// fileOrNil returns the file of an entry that may be nil.
func (d *descriptor) fileOrNil() File {
	if d == nil {
		return nil
	}
	return d.file
}

// lookup returns the entry of fd.
func (s *System) lookup(fd uint32) (*descriptor, Errno) {
	s.mu.Lock()
	if uint(fd) >= uint(len(s.files)) || s.files[fd] == nil {
		s.mu.Unlock()
		return nil, ErrnoBadf
	}
	d := s.files[fd]
	s.mu.Unlock()
	return d, ErrnoSuccess
}

// insert gives d the lowest free number from 3 on and closes its file when there is none.
func (s *System) insert(d *descriptor) (uint32, Errno) {
	s.mu.Lock()
	for len(s.files) < 3 {
		s.files = append(s.files, nil)
	}
	fd := 3 + slices.Index(s.files[3:], nil)
	if fd < 3 {
		fd = len(s.files)
	}
	if s.closed || fd >= maxFiles {
		s.mu.Unlock()
		s.release(d)
		return 0, ErrnoMfile
	}
	if fd == len(s.files) {
		s.files = append(s.files, nil)
	}
	s.files[fd] = d
	s.mu.Unlock()
	s.attach(int32(fd), d)
	return uint32(fd), ErrnoSuccess
}

// remove takes fd's entry out of the table.
func (s *System) remove(fd uint32) *descriptor {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint(fd) >= uint(len(s.files)) {
		return nil
	}
	d := s.files[fd]
	s.files[fd] = nil
	return d
}
