package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"agentvm/internal/host/hostpath"
	"agentvm/internal/share/changes"
	"agentvm/internal/share/mount"
)

// The changes of a guest in copy-on-write mounts.
type (
	// Changes are what a guest has changed in its copy-on-write mounts (Mount.CopyOnWrite), compared with what the host has now. What it reports of
	// the guest may be untrue, and what it takes on the host is bounded.
	Changes = changes.Set
	// Change is one of them.
	Change = changes.Change
	// ChangeStatus says what kind of change it is.
	ChangeStatus = changes.Status
	// ApplyOptions are those of Changes.Apply.
	ApplyOptions = changes.ApplyOptions
	// Applied says what Changes.Apply has done.
	Applied = changes.Applied
	// ConflictError is the error of Changes.Apply when the host has changed the same files meanwhile.
	ConflictError = changes.ConflictError
	// TornError is the error of Changes.Apply when files may be incomplete, because the VM has not ended cleanly.
	TornError = changes.TornError
)

// The statuses of changes.
const (
	Added       = changes.Added
	Modified    = changes.Modified
	Deleted     = changes.Deleted
	Renamed     = changes.Renamed
	TypeChanged = changes.TypeChanged
)

// Changes returns the changes of the copy-on-write mounts. It does not connect to the guest yet.
func (v *VM) Changes() *Changes {
	return ChangesOf(v.Files(), func(context.Context) (Config, error) { return v.configNow(), nil })
}

// ChangesOf returns the changes of a VM, of which are its files and, whenever it is used, its configuration. The mounts of that should have
// identities, see Pin.
func ChangesOf(files *Files, config func(context.Context) (Config, error)) *Changes {
	return changes.New(files, func(ctx context.Context) (mounts []changes.Mount, err error) {
		c, err := config(ctx)
		if err != nil {
			return nil, err
		}
		for i, spec := range c.Mounts {
			if spec.CopyOnWrite {
				mounts = append(mounts, changes.Mount{Target: spec.GuestPath, Open: func(ctx context.Context, change bool) (*mount.Original, error) {
					return openOriginal(ctx, c, i, change)
				}})
			}
		}
		return mounts, nil
	})
}

// WriteLayer writes what the VM has changed of its image as a layer for another image: a tar archive with whiteouts (OCI image specification,
// layer.md). What is mounted, as /tmp and /proc, is not in it. The archive comes from the guest and may hold anything; w has to bound it.
func (v *VM) WriteLayer(ctx context.Context, w io.Writer) error {
	files, err := v.filesClient(ctx)
	if err != nil {
		return v.explainFiles(err)
	}
	layer, err := files.Layer(ctx, "/")
	if err != nil {
		return v.explainFiles(err)
	}
	summary, err := layer.Pack(ctx, w)
	if err == nil && len(summary.Warnings) > 0 {
		err = fmt.Errorf("the changes are incomplete: %.1000s", strings.Join(summary.Warnings, ", "))
	}
	return errors.Join(v.explainFiles(err), layer.Close())
}

// openOriginal opens the directory of a copy-on-write mount as a writable mount would be: with the same masks, and the same compared. To
// be changed, it is remembered as a directory where guests may have made links.
func openOriginal(ctx context.Context, c Config, index int, change bool) (*mount.Original, error) {
	c.Mounts = slices.Clone(c.Mounts)
	c.Mounts[index].CopyOnWrite, c.UnixSockets = false, nil
	c.Logger = slog.New(slog.DiscardHandler)
	store, err := c.storeDir()
	if err != nil {
		return nil, err
	}
	set, err := openHostSet(c, store)
	if err != nil {
		return nil, err
	}
	defer set.close()
	m := set.mounts[index]
	if change {
		if err := set.guard.Remember(ctx, store, []*hostpath.Place{m.place}); err != nil {
			return nil, err
		}
	}
	return mount.OpenOriginal(m.serverConfig())
}
