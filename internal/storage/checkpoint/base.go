package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"agentvm/internal/host/shortage"
	"agentvm/internal/machine"
	"agentvm/internal/storage/snapshot"
)

const (
	// baseFormat changes when a base of an older version would not do.
	baseFormat = 4
	// baseTime bounds the writing and the removal of a base, which a VM's end waits for.
	baseTime = 10 * time.Second
	// checkDelay is how long a VM runs before the whole base is verified. A base has 30 MB, which a start has no time to hash: it verifies
	// one random piece of at most 1 MiB while it waits for other things. All pieces are then verified once per process, on one processor.
	checkDelay = time.Second
)

// Base is the place of a base in a store: the machine of a VM that has just booted, from which all VMs of its kind start.
type Base struct {
	dir, key string
	meta     snapshot.Meta
	logger   *slog.Logger
}

// baseExtra is what a base records beside the machine's memory.
type baseExtra struct {
	// Written are the ranges that VMs write first when they start from it.
	Written []machine.Range `json:"written"`
}

// NewBase returns the place, in the store in dir, of the base for machines that m describes, with a writable disk of so many bytes,
// or 0.
func NewBase(dir string, m snapshot.Meta, disk int64, logger *slog.Logger) *Base {
	shape, _ := json.Marshal(struct {
		Format                                int
		Machine, Kernel, Supervisor, RootDisk string
		Memory                                uint64
		Shares                                int
		Network                               json.RawMessage
		KernelArguments                       string
		Disk                                  int64
		Translated                            bool
	}{baseFormat, m.Machine, m.Kernel, m.Supervisor, m.RootDisk, m.Memory, m.Shares + m.SpareShares, m.Network, m.KernelArguments, disk, machine.TranslatesByDefault(m.Architecture())})
	sum := sha256.Sum256(shape)
	return &Base{dir, hex.EncodeToString(sum[:16]), m, logger}
}

// Key returns the name of the base in its store.
func (b *Base) Key() string { return b.key }

// Open opens the base, after one piece of it was verified. When it returns nil the VM boots; missing reports whether it should leave a
// base. Failures cost only time and are logged. What is damaged is removed.
func (b *Base) Open() (s *Saved, missing bool) {
	began := time.Now()
	s, err := acquire(b.dir+"\x00"+b.key, false, func() (*snapshot.File, error) {
		store, err := snapshot.OpenStore(b.dir)
		if err != nil {
			return nil, err
		}
		return store.Base(b.key)
	})
	if err == nil {
		if n := s.File.Chunks(); n > 0 {
			err = s.File.ChunkVerifier()(rand.IntN(n))
		}
	}
	bad := s
	if err != nil && s != nil {
		s.ref.Forget()
		s.Close() // before its removal, which Windows refuses while the file is open
		s = nil
	}
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		missing = true
	case shortage.Is(err):
		b.logger.Warn("the saved machine that VMs of this kind start from cannot be read now, so this one boots", "error", err, "advice", shortage.Advice(err))
	default:
		b.logger.Warn("the saved machine that VMs of this kind start from cannot be used and is removed", "error", err)
		b.Remove(bad)
		missing = true
	}
	b.logger.Debug("timing: looked for the base", "took", time.Since(began), "key", b.key, "error", err)
	return s, missing
}

// Remove removes a base that does not work. s is the file that was opened, so that one written meanwhile stays; it may be nil.
func (b *Base) Remove(s *Saved) {
	var bad *snapshot.File
	if s != nil {
		s.ref.Forget()
		bad = s.File
	}
	ctx, cancel := context.WithTimeout(context.Background(), baseTime)
	defer cancel()
	store, err := snapshot.OpenStore(b.dir)
	var needed []string
	if err == nil {
		needed, err = store.RemoveBase(ctx, b.key, bad)
	}
	if len(needed) > 0 {
		b.logger.Warn("snapshots are layered on the saved machine that cannot be used: it is kept for them alone, and what is wrong with it is wrong with them",
			"snapshots", strings.Join(needed, ", "))
	}
	if err != nil {
		b.logger.Debug("remove the base", "key", b.key, "error", err)
	}
}

// Write writes the base and closes image, which is its machine's memory. written are the ranges that VMs write first when they start from
// it. It takes at most 10 s. Failures cost only time and are logged.
func (b *Base) Write(image *machine.MemoryImage, written []machine.Range) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), baseTime)
	defer cancel()
	err := b.write(ctx, image, written)
	b.logger.Debug("timing: wrote the base", "took", time.Since(began), "key", b.key, "error", errors.Join(err, image.Close()))
}

func (b *Base) write(ctx context.Context, image *machine.MemoryImage, written []machine.Range) (err error) {
	meta := b.meta
	meta.Created, meta.LinearMemory = time.Now().UTC(), image.Size()
	if meta.Extra, err = json.Marshal(baseExtra{written}); err != nil {
		return err
	}
	store, err := snapshot.OpenStore(b.dir)
	if err != nil {
		return err
	}
	if err := store.WriteBase(ctx, b.key, snapshot.Content{Meta: meta, Memory: extents(image, nil)}); err != nil {
		return err
	}
	return store.Collect(ctx, nil)
}

// Check verifies all of the base from which a VM was started, some time after the start, once per process. Damage cannot be undone in this
// VM, but no other VM starts from it. It returns early when stop is closed; the next VM then verifies the base.
func (b *Base) Check(s *Saved, stop <-chan struct{}) {
	if s.checked.Swap(true) {
		return
	}
	verified, err := s.verify(stop, checkDelay)
	switch {
	case err == nil:
		s.checked.Store(verified)
	case shortage.Is(err):
		s.checked.Store(false) // the next VM verifies it
		b.logger.Warn("the saved machine that this VM was started from cannot be verified now", "error", err, "advice", shortage.Advice(err))
	default:
		b.logger.Warn("the saved machine that this VM was started from is damaged and is removed: what the VM does may be wrong, stop it and start it again",
			"error", err)
		b.Remove(s)
	}
}

// verify verifies all pieces of the file after delay. It returns false when stop was closed before it had done so.
func (s *Saved) verify(stop <-chan struct{}, delay time.Duration) (bool, error) {
	wait := time.NewTimer(delay)
	defer wait.Stop()
	select {
	case <-stop:
		return false, nil
	case <-wait.C:
	}
	verify := s.File.ChunkVerifier()
	for i := range s.File.Chunks() {
		select {
		case <-stop:
			return false, nil
		default:
		}
		if err := verify(i); err != nil {
			return false, err
		}
	}
	return true, nil
}
