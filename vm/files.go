package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/guestfs"
	"agentvm/wasi"
)

// The files of a guest.
type (
	// Files reads and writes the files of a guest, as its root user. Paths are absolute and have slashes. The guest's errors satisfy
	// errors.Is(err, fs.ErrNotExist) and the like. What the guest reports may be untrue, and what it takes on the host is bounded: beyond a
	// bound the error is a *LimitError.
	Files = guestfs.Files
	// FileInfo is what the guest reports about a file.
	FileInfo = guestfs.FileInfo
	// Owner is a user and a group of the guest, by number.
	Owner = guestfs.Owner
	// CopyOptions are those of CopyTo and CopyFrom. The zero value copies up to a million files with 16 GiB, which root owns in the guest.
	CopyOptions = guestfs.CopyOptions
	// CopyProgress is how far a copy is.
	CopyProgress = guestfs.CopyProgress
	// CopyStats counts what was copied, and what was left out and why.
	CopyStats = guestfs.CopyStats
	// Limit is a bound on what a guest, or a copy, may take: what is counted, and how much.
	Limit = guestfs.Limit
	// LimitError says that a Limit was exceeded, and where.
	LimitError = guestfs.LimitError
)

const (
	// bulkSize is the capacity in bytes of the bulk stream: a few messages with file contents each way.
	bulkSize = 1 << 20
	// bulkTime is how long the guest may take to answer on the bulk stream at its first use.
	bulkTime = 30 * time.Second
)

// bulk is the VM's second connection to its guest. It carries files, so that they do not delay commands.
//
//	unused ──first use──► dialing ──► ready
//	                         └──────► failed for good
type bulk struct {
	stream *wasi.Stream
	begin  sync.Once
	ready  chan struct{} // closed when client or err is set
	client *guestrpc.FilesClient
	err    error
}

func newBulk() *bulk { return &bulk{stream: wasi.NewStream(bulkSize), ready: make(chan struct{})} }

// filesClient returns the client of the guest's file service, which the VM owns. The first call connects to it; ctx bounds how long it
// waits for that.
func (v *VM) filesClient(ctx context.Context) (*guestrpc.FilesClient, error) {
	if _, err := v.guest(ctx); err != nil {
		return nil, err
	}
	return v.bulkClient(ctx)
}

// bulkClient is filesClient during the handshake, too.
func (v *VM) bulkClient(ctx context.Context) (*guestrpc.FilesClient, error) {
	b := v.bulk
	b.begin.Do(func() {
		if err := v.goTracked(func() { b.dial(v) }); err != nil {
			b.err = err
			close(b.ready)
		}
	})
	select {
	case <-b.ready:
		return b.client, v.explainFiles(b.err)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dial connects to the file service. The machine's end ends it, since that closes the stream.
func (b *bulk) dial(v *VM) {
	defer close(b.ready)
	ctx, cancel := v.withActiveTimeout(context.Background(), bulkTime, nil,
		fmt.Errorf("the guest's file service has not answered for %v", bulkTime))
	defer cancel()
	b.client, b.err = guestrpc.DialFilesWith(ctx, b.stream.Host(), guestrpc.ClientConfig{Memory: v.config.memory})
	b.err = withCause(ctx, b.err)
}

// close ends the client. waitTracked calls it after dial has returned.
func (b *bulk) close() {
	if b.client != nil {
		_ = b.client.Close()
	}
}

// goTracked runs do in a goroutine that the VM's end waits for. do must return when the machine ends, or soon after.
func (v *VM) goTracked(do func()) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return v.cause
	}
	v.tracked.Go(do)
	return nil
}

// waitTracked waits for the goroutines of goTracked, which starts none any more, and for those of jobs. It is called when the machine has stopped.
func (v *VM) waitTracked() {
	v.mu.Lock()
	v.ended = true
	v.mu.Unlock()
	v.tracked.Wait()
	v.jobs.Wait(v.cause)
	v.bulk.close()
}

// Files returns the guest's files. It does not connect to the guest yet.
func (v *VM) Files() *Files {
	files := guestfs.NewLazy(v.filesClient, v.explainFiles)
	if r := v.config.Recorder.to(); r != nil {
		files = guestfs.Noted(files, r.File)
	}
	return files
}

// explainFiles returns why the VM ended when that is what caused err, else err.
func (v *VM) explainFiles(err error) error {
	if err == nil || !errors.Is(err, capnprpc.ErrClosed) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	select {
	case <-v.halted:
		return v.cause
	case <-v.stuck:
		return v.stuckErr
	case <-time.After(drainTime): // the streams end a moment before
		return fmt.Errorf("the guest's file service has gone, restart the VM to have it back: %w", err)
	}
}

// ReadFile is Files.ReadFile.
func (v *VM) ReadFile(ctx context.Context, path string) ([]byte, error) {
	return v.Files().ReadFile(ctx, path)
}

// WriteFile is Files.WriteFile: the file is replaced as a whole or not at all.
func (v *VM) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return v.Files().WriteFile(ctx, path, data, mode)
}

// Stat is Files.Stat.
func (v *VM) Stat(ctx context.Context, path string) (FileInfo, error) {
	return v.Files().Stat(ctx, path)
}

// List is Files.List.
func (v *VM) List(ctx context.Context, path string) ([]FileInfo, error) {
	return v.Files().List(ctx, path)
}

// Remove is Files.Remove.
func (v *VM) Remove(ctx context.Context, path string) error { return v.Files().Remove(ctx, path) }

// RemoveAll is Files.RemoveAll.
func (v *VM) RemoveAll(ctx context.Context, path string) error { return v.Files().RemoveAll(ctx, path) }

// MkdirAll is Files.MkdirAll.
func (v *VM) MkdirAll(ctx context.Context, path string, mode fs.FileMode) error {
	return v.Files().MkdirAll(ctx, path, mode)
}

// Walk is Files.Walk.
func (v *VM) Walk(ctx context.Context, root string, fn func(path string, info FileInfo, err error) error) error {
	return v.Files().Walk(ctx, root, fn)
}

// CopyTo is Files.CopyTo.
func (v *VM) CopyTo(ctx context.Context, hostPath, guestPath string, o CopyOptions) (CopyStats, error) {
	return v.Files().CopyTo(ctx, hostPath, guestPath, o)
}

// CopyFrom is Files.CopyFrom.
func (v *VM) CopyFrom(ctx context.Context, guestPath, hostPath string, o CopyOptions) (CopyStats, error) {
	return v.Files().CopyFrom(ctx, guestPath, hostPath, o)
}

// ExtractTar is Files.ExtractTar.
func (v *VM) ExtractTar(ctx context.Context, guestDir string, r io.Reader) error {
	return v.Files().ExtractTar(ctx, guestDir, r)
}

// CreateTar is Files.CreateTar.
func (v *VM) CreateTar(ctx context.Context, guestPaths []string, w io.Writer) (CopyStats, error) {
	return v.Files().CreateTar(ctx, guestPaths, w)
}
