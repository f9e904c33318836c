package checkpoint

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"agentvm/internal/machine"
	"agentvm/internal/storage/disk"
	"agentvm/internal/storage/snapshot"
)

// Capture is a machine at one moment. It does not need the VM any more. Whoever has it closes it.
type Capture struct {
	Image *machine.MemoryImage
	Saved *Saved       // the file that has parts of Image; nil: none
	Disk  *disk.Frozen // nil: none
}

// Write writes the capture to a file and returns its description, which is meta with what the capture adds. With layered, what is unchanged
// since the file that the VM was started from is left out where that is still in its store. hashDisk is snapshot.Content.HashDisk.
func (c *Capture) Write(ctx context.Context, path string, meta snapshot.Meta, layered, hashDisk bool, logger *slog.Logger) (snapshot.Meta, error) {
	content := snapshot.Content{Meta: meta}
	if layered && c.Saved != nil {
		content.Base = c.Saved.File
		if base := content.Base.Base(); base != nil { // which is itself layered on none
			content.Base = base
		}
	}
	content.Meta.LinearMemory, content.Memory = c.Image.Size(), extents(c.Image, content.Base)
	if c.Disk != nil {
		content.Disk, content.HashDisk, content.Meta.Disk = c.Disk, hashDisk, &snapshot.Disk{Size: c.Disk.Size()}
	}
	err := snapshot.Write(ctx, path, content)
	if content.Base != nil && errors.Is(err, snapshot.ErrNoBase) {
		// The base has left the store since the VM was started from it. The VM has it open, so the file gets everything.
		logger.Debug("the base is gone: the snapshot is written whole", "error", err)
		content.Base, content.Memory = nil, extents(c.Image, nil)
		err = snapshot.Write(ctx, path, content)
	}
	return content.Meta, err
}

// Close frees the capture. Machines that were made from it do not need it.
func (c *Capture) Close() error {
	var errs []error
	if c.Image != nil {
		errs = append(errs, c.Image.Close())
	}
	if c.Disk != nil {
		errs = append(errs, c.Disk.Close())
	}
	c.Saved.Close()
	return errors.Join(errs...)
}

// extents converts an image's extents for package snapshot. Those that are in a file of base stay there (InBase).
func extents(image *machine.MemoryImage, base *snapshot.File) []snapshot.Extent {
	inBase := make(map[*os.File]bool)
	if base != nil {
		for _, r := range base.Memory() {
			inBase[r.File] = true
		}
	}
	var list []snapshot.Extent
	for _, e := range image.Extents() {
		list = append(list, snapshot.Extent{
			At: e.At, Length: e.Length, Source: e.File, Offset: e.Offset, InBase: inBase[e.File],
		})
	}
	return list
}
