package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync/atomic"
)

// An outline is a file without its contents: header, description, table of the memory, table of the disk, one after another and as long as
// the header says. From the tables follow the pieces of the contents, which a store elsewhere keeps (internal/storage/statestore): the own pages of each
// PieceSize bytes of memory, ascending, then those of the disk. A disk beside the file is a part of its outline, as in an exported one.

// PieceSize is how many bytes of memory or disk a piece is about; it has only the own pages of them.
const PieceSize = 64 << 10

const piecePages = PieceSize / PageSize

// Outline is a decoded outline.
type Outline struct {
	header       *header
	sum          digest // of the header
	meta         []byte
	described    Meta
	memory, disk table
	pieces       []piece
}

// piece is a part of the contents.
type piece struct {
	chunk    *chunk
	disk     bool
	from, to int // pages of the chunk, some of which are own
	own      int // how many
}

// DecodeOutline is the reverse of Encode. It accepts bytes of anyone, and refuses every outline that this package would not have made. It
// keeps parts of b.
func DecodeOutline(b []byte) (*Outline, error) {
	if len(b) < headerSize {
		return nil, fmt.Errorf("%w: its outline ends in the header", ErrCorrupt)
	}
	h, err := decodeHeader(b[:headerSize])
	if err != nil {
		return nil, err
	}
	if h.version != Version {
		return nil, fmt.Errorf("%w: an outline of format %d", ErrVersion, h.version)
	}
	o := &Outline{header: h, sum: digest(b[sumAt:headerSize])}
	rest := b[headerSize:]
	section := func(s section, name string) (part []byte) {
		if err == nil && int64(len(rest)) < s.length {
			err = fmt.Errorf("%w: its outline ends in the %s", ErrCorrupt, name)
		}
		if err != nil {
			return nil
		}
		part, rest = rest[:s.length:s.length], rest[s.length:]
		if s.length > 0 || s.offset > 0 {
			err = s.check(part, name)
		}
		return part
	}
	o.meta = section(h.meta, "description")
	memory := section(h.memoryTable, "table of the memory")
	disk := section(h.diskTable, "table of the disk")
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: something follows its outline", ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	if o.memory, err = decodeTable(memory, h.memorySize, h.base != digest{}); err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	if o.disk, err = decodeTable(disk, h.diskSize, false); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	if err := h.arranged(o.memory, o.disk); err != nil {
		return nil, err
	}
	h.arrange(o.memory, o.disk)
	if o.described, err = decodeMeta(o.meta, h); err != nil {
		return nil, err
	}
	if o.described.Disk != nil && o.described.Disk.Beside != "" {
		return nil, fmt.Errorf("%w: its outline has a disk elsewhere", ErrCorrupt)
	}
	o.cut()
	return o, nil
}

// Encode returns the outline's bytes.
func (o *Outline) Encode() []byte {
	return slices.Concat(o.header.encode(), o.meta, o.memory.encode(), o.disk.encode())
}

// cut finds the pieces.
func (o *Outline) cut() {
	for _, t := range []table{o.memory, o.disk} {
		for i := range t {
			c := &t[i]
			for from := 0; from < chunkPages; from += piecePages {
				if n := c.own.between(from, from+piecePages); n > 0 {
					o.pieces = append(o.pieces, piece{chunk: c, disk: len(o.disk) > 0 && &t[0] == &o.disk[0], from: from, to: from + piecePages, own: n})
				}
			}
		}
	}
}

// between counts the set pages from one to another.
func (s *pageSet) between(from, to int) (n int) {
	for ; from < to; from++ {
		if s.has(from) {
			n++
		}
	}
	return n
}

// ID is that of the file.
func (o *Outline) ID() string { return hex.EncodeToString(o.sum[:]) }

// BaseID is that of the file's base, or empty.
func (o *Outline) BaseID() string {
	if o.header.base == (digest{}) {
		return ""
	}
	return hex.EncodeToString(o.header.base[:])
}

// Meta describes the file.
func (o *Outline) Meta() Meta { return o.described }

// Pieces returns how many pieces the contents have.
func (o *Outline) Pieces() int { return len(o.pieces) }

// Size returns how many bytes a piece has, at most PieceSize.
func (o *Outline) Size(piece int) int { return o.pieces[piece].own * PageSize }

// Bytes returns how many bytes all pieces have.
func (o *Outline) Bytes() (n int64) {
	for i := range o.pieces {
		n += int64(o.Size(i))
	}
	return n
}

// Outline makes the outline of a file, to which a disk beside it belongs: then the outline's ID is not the file's.
func (f *File) Outline(ctx context.Context) (*Outlined, error) {
	o, err := f.outline(ctx)
	if err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", f.path, err)
	}
	return o, nil
}

// Outlined is an outline with the file that it is of.
type Outlined struct {
	*Outline
	file   *File
	source *source // of the disk; nil: none
	saved  SavedDisk
}

// Close closes the disk, not the file.
func (o *Outlined) Close() error {
	if o.saved != nil {
		return o.saved.Close()
	}
	return nil
}

func (f *File) outline(ctx context.Context) (*Outlined, error) {
	if f.header.version != Version {
		return nil, fmt.Errorf("%w: it has format %d: export and import it, which makes it one of format %d", ErrVersion, f.header.version, Version)
	}
	saved, err := f.OpenDisk()
	if err != nil {
		return nil, err
	}
	o := &Outlined{Outline: &Outline{header: &header{version: Version, memorySize: f.header.memorySize, base: f.header.base}}, file: f, saved: saved}
	err = o.describe(ctx, saved)
	if err != nil {
		_ = o.Close()
		return nil, err
	}
	return o, nil
}

func (o *Outlined) describe(ctx context.Context, saved SavedDisk) (err error) {
	meta := o.file.meta
	o.Outline.memory = slices.Clone(o.file.memory)
	if saved != nil {
		x := &flat{File: o.file}
		if err := x.flattenDisk(ctx, saved); err != nil {
			return err
		}
		o.source, o.Outline.disk = x.source, x.disk
		if o.file.besideName() == "" {
			o.Outline.disk = slices.Clone(o.file.disk)
		}
		o.header.diskSize, meta.Disk = saved.Size(), &Disk{Size: saved.Size()}
	}
	if o.meta, err = encodeMeta(meta); err != nil {
		return err
	}
	o.described = meta
	o.header.describe(o.Outline.memory, o.Outline.disk, o.meta)
	o.sum = digest(o.header.encode()[sumAt:])
	o.cut()
	return nil
}

// Each calls use for each piece, from several goroutines, with contents that are use's until it returns. It verifies what it reads.
func (o *Outlined) Each(ctx context.Context, use func(piece int, content []byte) error) error {
	type job struct{ first, end int } // the pieces of one chunk
	var jobs []job
	for i := range o.pieces {
		if n := len(jobs) - 1; n >= 0 && o.pieces[jobs[n].first].chunk == o.pieces[i].chunk {
			jobs[n].end = i + 1
			continue
		}
		jobs = append(jobs, job{i, i + 1})
	}
	return each(ctx, len(jobs), func(_ context.Context, i int, p []byte) error {
		first := o.pieces[jobs[i].first]
		if err := o.read(first, p); err != nil {
			return err
		}
		if first.chunk.hash(p) != first.chunk.sum {
			return fmt.Errorf("%w: snapshot %s at %#x", ErrCorrupt, o.file.path, first.chunk.at())
		}
		content := make([]byte, 0, PieceSize)
		for n := jobs[i].first; n < jobs[i].end; n++ {
			content = content[:0]
			for from, to := o.pieces[n].next(o.pieces[n].from); from < to; from, to = o.pieces[n].next(to) {
				content = append(content, p[from*PageSize:to*PageSize]...)
			}
			if err := use(n, content); err != nil {
				return err
			}
		}
		return nil
	})
}

// read reads the own pages of a piece's chunk to their places in p.
func (o *Outlined) read(of piece, p []byte) error {
	if of.disk {
		_, _, err := o.source.read(of.chunk.number, p)
		return err
	}
	return o.file.readOwn(o.file.memory.find(of.chunk.number), p, o.file.header.memory, "memory", false)
}

// next returns the run of own pages [from, to) of the piece that begins at or after page n; from is to when there is none.
func (c *piece) next(n int) (from, to int) {
	from, to = c.chunk.own.next(n)
	from, to = min(from, c.to), min(to, c.to)
	return from, to
}

// Incoming is a file that is being put together from an outline and its pieces.
type Incoming struct {
	outline *Outline
	t       *temporary
	base    *File
	written []atomic.Bool
}

// Receive begins a file at path, a place of the store (Path, BasePath) or of a [Fork]. Base is the file that it is layered on, or nil.
// Its user calls Discard in the end.
func (s *Store) Receive(path string, o *Outline, base *File) (*Incoming, error) {
	if (o.header.base != digest{}) != (base != nil) || base != nil && base.sum != o.header.base {
		return nil, fmt.Errorf("receive snapshot %s: %w", path, ErrNoBase)
	}
	if base != nil {
		if err := (&File{path: path, header: o.header, memory: o.memory}).fits(base); err != nil {
			return nil, fmt.Errorf("receive snapshot %s: %w", path, err)
		}
	}
	t, err := newTemporary(path)
	if err != nil {
		return nil, fmt.Errorf("receive snapshot %s: %w", path, err)
	}
	return &Incoming{outline: o, t: t, base: base, written: make([]atomic.Bool, len(o.pieces))}, nil
}

// Write writes a piece. Several goroutines may write different pieces at once.
func (in *Incoming) Write(n int, content []byte) error {
	c := &in.outline.pieces[n]
	if len(content) != c.own*PageSize {
		return fmt.Errorf("%w: a piece of %d bytes instead of %d", ErrCorrupt, len(content), c.own*PageSize)
	}
	at := in.outline.header.memory.offset
	if c.disk {
		at = in.outline.header.disk.offset
	}
	for from, to := c.next(c.from); from < to; from, to = c.next(to) {
		length := (to - from) * PageSize
		if _, err := in.t.file.WriteAt(content[:length], at+c.chunk.place(from)); err != nil {
			return plain(err)
		}
		content = content[length:]
	}
	in.written[n].Store(true)
	return nil
}

// Commit gives the file its name when there is none of that name yet. With own the caller knows that one of the user's stores has written the
// file, and this store seals it as its own; without, all contents are verified first.
func (in *Incoming) Commit(ctx context.Context, own bool) error {
	err := in.commit(ctx, own)
	if err != nil {
		return fmt.Errorf("receive snapshot %s: %w", in.t.path, err)
	}
	return nil
}

func (in *Incoming) commit(ctx context.Context, own bool) error {
	for i := range in.written {
		if !in.written[i].Load() {
			return fmt.Errorf("%w: %d of its pieces and maybe more are missing", ErrCorrupt, i+1)
		}
	}
	h := *in.outline.header
	id, err := h.finish(in.t.file, in.outline.memory, in.outline.disk, in.outline.meta)
	if err != nil {
		return err
	}
	if id != in.outline.sum {
		return fmt.Errorf("%w: its ID", ErrCorrupt)
	}
	p := publication{exclusive: true, locked: !isFork(in.t.path), base: in.base}
	if own {
		p.written = id
	} else if err := in.verify(ctx); err != nil {
		return err
	}
	return in.t.publish(ctx, p)
}

func (in *Incoming) verify(ctx context.Context) error {
	f := &File{path: in.t.path, file: in.t.file, header: in.outline.header, memory: in.outline.memory, disk: in.outline.disk}
	err := f.verifyContents(ctx, f.header.memory, f.memory, "memory")
	if err == nil && f.header.diskSize > 0 {
		err = f.verifyContents(ctx, f.header.disk, f.disk, "disk")
	}
	return err
}

// Discard removes what is not committed.
func (in *Incoming) Discard() { in.t.discard() }

// Find opens the base or snapshot of this store with an ID that something can be layered on; fs.ErrNotExist when there is none.
func (s *Store) Find(id string) (*File, error) {
	var sum digest
	if b, err := hex.DecodeString(id); err != nil || copy(sum[:], b) != sha256.Size {
		return nil, fmt.Errorf("ID of a snapshot %.80q: %w", id, fs.ErrInvalid)
	}
	f, err := findBase(filepath.Join(s.snapshots(), Suffix), sum)
	if err != nil {
		return nil, err
	}
	return f, f.checkSeal()
}

// BasePath returns where this store keeps a base that came from elsewhere: nothing starts from it, but what is layered on it.
func (s *Store) BasePath(id string) string {
	return filepath.Join(s.bases(), "state."+id[:min(16, len(id))]+Suffix)
}
