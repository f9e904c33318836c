package guestfs

import (
	"fmt"
	"io"

	"agentvm/internal/host/hostpath"
)

// Limits of CopyTo and CopyFrom unless CopyOptions say otherwise.
const (
	DefaultCopyEntries = 1 << 20  // files, directories and links
	DefaultCopyBytes   = 16 << 30 // of file contents
)

// Bounds that have no option.
const (
	maxPath       = 4096     // bytes of a path, as Linux has it
	maxDepth      = 128      // directories in each other: one stays open for each
	maxDirNames   = 64 << 20 // bytes of directories' names that are remembered until the end
	maxSkipped    = 16
	progressBytes = 1 << 20
	// copyBlock is how many bytes are moved at once: as many as a message carries.
	copyBlock = 256 << 10
)

// Limit is a bound on what a guest, or a copy, may take.
type Limit struct {
	Name string // what is counted: "bytes", "entries" ...
	Max  int64
}

// LimitError says that a limit was exceeded.
type LimitError struct {
	Limit Limit
	Path  string // where, or empty
}

func (e *LimitError) Error() string {
	text := fmt.Sprintf("more than %d %s", e.Limit.Max, e.Limit.Name)
	if e.Path != "" {
		text += fmt.Sprintf(" (at %.200q)", e.Path)
	}
	return text + ": set a higher limit if that is as it should be"
}

// CopyOptions are those of CopyTo and CopyFrom. The zero value is useful.
type CopyOptions struct {
	// Owner gets what is copied into the guest. Default: root.
	Owner Owner
	// KeepOwners keeps the owners, by number, and the set-user-ID, set-group-ID and sticky bits that files have on the host when they
	// are copied into the guest, instead of Owner. Windows has none: there it is an error.
	KeepOwners bool
	// MaxEntries and MaxBytes end a copy with a *LimitError. Defaults: DefaultCopyEntries, DefaultCopyBytes.
	MaxEntries, MaxBytes int64
	// Progress receives how far a copy is, after each entry and at least each MiB within large files. It must return quickly.
	Progress func(CopyProgress)

	guard *hostpath.Guard // see Guarded
}

// place opens a path of the host.
func (o CopyOptions) place(path string) (*hostpath.Place, error) {
	if o.guard == nil {
		return hostpath.Resolve(path)
	}
	return o.guard.Open(path, hostpath.Identity{})
}

// CopyProgress is how far a copy is.
type CopyProgress struct {
	Entries, Bytes int64  // so far
	Path           string // of the entry, below what is copied; a guest may have chosen it
}

// CopyStats counts what was copied.
type CopyStats struct {
	Entries int64 // files, directories and links
	Bytes   int64 // of file contents
	// Skipped counts what was left out: devices, FIFOs, sockets and, on the way out, links that lead out.
	Skipped int64
	// Reasons has the names of the first 16 of them, and why. A guest may have chosen the names.
	Reasons []string
	// Torn counts files of the guest that may be incomplete, because its machine was killed soon after they had been written (FileInfo.Torn);
	// they were copied all the same. TornFiles has the paths of the first 16, which a guest may have chosen.
	Torn      int64
	TornFiles []string
}

// meter counts a copy and keeps its limits. One goroutine uses it.
type meter struct {
	options CopyOptions
	copied  CopyStats
	seen    int64  // entries, also those that were left out
	path    string // of the entry under way
	shown   int64  // bytes, when progress was reported last
}

func newMeter(o CopyOptions) *meter {
	if o.MaxEntries <= 0 {
		o.MaxEntries = DefaultCopyEntries
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultCopyBytes
	}
	return &meter{options: o}
}

// begin counts an entry. size is what the archive claims: too much is refused before it is read.
func (m *meter) begin(path string, size int64) error {
	m.path = path
	if err := m.see(path); err != nil {
		return err
	}
	if size > m.options.MaxBytes-m.copied.Bytes {
		return &LimitError{Limit{"bytes", m.options.MaxBytes}, m.path}
	}
	m.copied.Entries++
	return nil
}

func (m *meter) see(path string) error {
	if m.seen >= m.options.MaxEntries {
		return &LimitError{Limit{"entries", m.options.MaxEntries}, path}
	}
	m.seen++
	return nil
}

// Write counts bytes of the entry.
func (m *meter) Write(p []byte) (int, error) {
	if int64(len(p)) > m.options.MaxBytes-m.copied.Bytes {
		return 0, &LimitError{Limit{"bytes", m.options.MaxBytes}, m.path}
	}
	m.copied.Bytes += int64(len(p))
	if m.copied.Bytes-m.shown >= progressBytes {
		m.report()
	}
	return len(p), nil
}

// report reports the progress.
func (m *meter) report() {
	m.shown = m.copied.Bytes
	if m.options.Progress != nil {
		m.options.Progress(CopyProgress{m.copied.Entries, m.copied.Bytes, m.path})
	}
}

// skip records that an entry is left out. It counts against the entries, so that they are bounded.
func (m *meter) skip(path, reason string) error {
	if err := m.see(path); err != nil {
		return err
	}
	m.copied.Skipped++
	if len(m.copied.Reasons) < maxSkipped {
		m.copied.Reasons = append(m.copied.Reasons, fmt.Sprintf("%.200q %s", path, reason))
	}
	return nil
}

// capped is a writer with a limit of bytes.
type capped struct {
	w     io.Writer
	n     int64
	limit Limit
}

func (c *capped) Write(p []byte) (int, error) {
	if int64(len(p)) > c.limit.Max-c.n {
		return 0, &LimitError{Limit: c.limit}
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// cappedReader is a reader with a limit of bytes.
type cappedReader struct {
	r     io.Reader
	n     int64
	limit Limit
}

func (c *cappedReader) Read(p []byte) (int, error) {
	if c.n >= c.limit.Max {
		return 0, &LimitError{Limit: c.limit}
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.limit.Max-c.n)])
	c.n += int64(n)
	return n, err
}
