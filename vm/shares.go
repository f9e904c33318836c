package vm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"agentvm/emulator"
	"agentvm/mount"
	"agentvm/rpc"
	"agentvm/wasi"
)

// share is one mounted host directory: the server and its connection to the machine.
type share struct {
	spec   mount.Spec
	tag    string
	server *mount.Server
	stream *wasi.Stream
}

type shares []*share

// shareSize is the capacity in bytes of a share's stream: a few messages of the size the guest asks for.
const shareSize = 512 << 10

// openShares opens the host directories. On failure none stays open.
func openShares(specs []mount.Spec, log *slog.Logger) (shares, error) {
	var list shares
	for i, spec := range specs {
		server, err := mount.NewServer(mount.Config{Dir: spec.HostPath, ReadOnly: spec.ReadOnly, Masks: spec.Masks, Logger: log})
		if err != nil {
			return nil, errors.Join(err, list.close())
		}
		list = append(list, &share{
			spec: spec, tag: fmt.Sprintf("mount%d", i), server: server, stream: wasi.NewStream(shareSize),
		})
	}
	return list, nil
}

// devices are the machine's ends.
func (list shares) devices() (devices []emulator.Share) {
	for _, s := range list {
		devices = append(devices, emulator.Share{Tag: s.tag, File: s.stream})
	}
	return devices
}

// mounts is what the guest is told.
func (list shares) mounts() (mounts []rpc.Mount) {
	for _, s := range list {
		mounts = append(mounts, rpc.Mount{Tag: s.tag, Target: s.spec.GuestPath, ReadOnly: s.spec.ReadOnly})
	}
	return mounts
}

// serve starts a goroutine for each share; it ends when the machine has closed its end. The server logs what goes wrong.
func (list shares) serve(ctx context.Context, streams *sync.WaitGroup) {
	for _, s := range list {
		streams.Go(func() { _ = s.server.Serve(ctx, s.stream.Host()) })
	}
}

func (list shares) close() error {
	var errs []error
	for _, s := range list {
		errs = append(errs, s.server.Close())
	}
	return errors.Join(errs...)
}
