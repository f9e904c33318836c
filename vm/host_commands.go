package vm

import (
	"bytes"
	"context"
	"path"
	"slices"
	"strings"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/network/reach"
	"agentvm/internal/share/guestfs"
	"agentvm/internal/work/bind"
)

type (
	// HostCommand is a command of Config.HostCommands.
	HostCommand = bind.Command
	// HostCall is one call of a HostCommand by a program of the guest.
	HostCall = bind.Call
	// HostExitError is the error with which HostCommand.Run gives an exit code.
	HostExitError = bind.ExitError
)

// ParseHostCommand reads NAME=COMMAND, as the flag --bind has it: a program of this host and its first arguments, without a shell.
func ParseHostCommand(text string) (HostCommand, error) { return bind.Parse(text) }

// hostCommandSocket returns all sockets that lead to the host, and where.
func (v *VM) hostCommandSocket() ([]guestrpc.UnixSocket, guestrpc.Connector) {
	sockets := reach.GuestSockets(v.config.UnixSockets)
	connect := reach.SocketConnector(v.config.UnixSockets, v.resources.sockets, v.resources.network.Audit, v.config.Logger)
	server := bind.NewServer(v.config.HostCommands)
	if server == nil {
		return sockets, connect
	}
	own := guestrpc.UnixSocket{Path: bind.SocketPath, ID: bind.SocketPath}
	return append(sockets, own), func(ctx context.Context, id string) (capnprpc.Stream, error) {
		if id == bind.SocketPath || connect == nil {
			return server.Connect(ctx, v.goTracked)
		}
		return connect(ctx, id)
	}
}

// hostCommandsEnv puts the host's commands into PATH.
func (c Config) hostCommandsEnv(env []string) []string {
	if len(c.HostCommands) == 0 {
		return env
	}
	search := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // the supervisor's own default
	for _, kv := range env {
		if text, found := strings.CutPrefix(kv, "PATH="); found {
			search = text
		}
	}
	return append(slices.Clip(env), "PATH="+path.Join(bind.Dir, bind.Folder)+":"+search)
}

// installHostCommands writes the host's commands into the guest, in place of those of the VM that it is a copy of.
func (v *VM) installHostCommands(ctx context.Context) error {
	list := v.config.HostCommands
	if len(list) == 0 && !v.resources.hostCommands {
		return nil
	}
	files := guestfs.NewLazy(v.bulkClient, v.explainFiles)
	for _, name := range []string{bind.Folder, bind.List} {
		if !v.resources.hostCommands {
			break
		}
		if err := files.RemoveAll(ctx, path.Join(bind.Dir, name)); err != nil {
			return err
		}
	}
	if len(list) == 0 {
		return nil
	}
	archive, err := bind.Archive(list, v.resources.architecture)
	if err != nil {
		return err
	}
	return files.ExtractTar(ctx, bind.Dir, bytes.NewReader(archive))
}
