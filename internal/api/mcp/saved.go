package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/client"
)

type snapshotInput struct {
	VM      string `json:"vm,omitempty" jsonschema:"for create: the VM, default the server's; for restore: the name of the VM to make"`
	Action  string `json:"action"`
	Name    string `json:"name,omitempty" jsonschema:"of the snapshot, except for list"`
	Comment string `json:"comment,omitempty" jsonschema:"for create"`
}

type snapshotOutput struct {
	VM        string     `json:"vm,omitempty"`
	Name      string     `json:"name,omitempty"`
	Snapshots []Snapshot `json:"snapshots,omitempty"`
}

// maxComment bounds the comment of a snapshot, in bytes.
const maxComment = 1000

func (s *Server) snapshot(ctx context.Context, _ *sdk.CallToolRequest, in snapshotInput) (*sdk.CallToolResult, *snapshotOutput, error) {
	if (in.Name == "") != (in.Action == "list") {
		return nil, nil, errors.New("name: want the snapshot's with create, restore and remove, and none with list")
	}
	if len(in.Comment) > maxComment {
		return nil, nil, fmt.Errorf("comment: want at most %d bytes", maxComment)
	}
	out := &snapshotOutput{}
	if in.Action == "list" {
		list, err := s.config.VMs.Snapshots(ctx)
		if err != nil {
			return nil, nil, err
		}
		out.Snapshots = slices.DeleteFunc(list, func(i Snapshot) bool { return !s.own(i.Name) })
		return nil, out, nil
	}
	if out.Name = s.name(in.Name); out.Name == s.config.Default {
		return nil, nil, fmt.Errorf("name %s: want one that is not the VM's", in.Name)
	}
	err := client.CheckName(out.Name)
	if err != nil {
		return nil, nil, err
	}
	switch in.Action {
	case "create":
		out.VM = s.name(in.VM)
		err = s.config.VMs.Snapshot(ctx, out.VM, out.Name, in.Comment)
	case "restore":
		if out.VM, err = s.newName(in.VM); err == nil {
			err = s.config.VMs.Restore(ctx, out.Name, out.VM)
		}
	case "remove":
		err = s.config.VMs.RemoveSnapshot(ctx, out.Name)
	}
	if err != nil {
		return nil, nil, err
	}
	return nil, out, nil
}

// newName is the whole name of a VM that is to be made.
func (s *Server) newName(given string) (string, error) {
	name := s.name(given)
	if name == s.config.Default {
		return "", fmt.Errorf("name %q: want one for the new VM, which is not %s", given, name)
	}
	return name, client.CheckName(name)
}

type forkInput struct {
	VM     string   `json:"vm,omitempty" jsonschema:"for create: the VM to fork; default: the server's"`
	Action string   `json:"action"`
	Names  []string `json:"names,omitempty" jsonschema:"of the VMs to make or to remove"`
	Keep   bool     `json:"keep_programs,omitempty" jsonschema:"for create: programs run on in the forks, too; default: they are killed there"`
}

type forkOutput struct {
	VM    string   `json:"vm" jsonschema:"the VM that was forked, or the default one"`
	Names []string `json:"names" jsonschema:"of the VMs that were made, that there are, or that were removed"`
}

// maxForks bounds the forks of one call.
const maxForks = 20

func (s *Server) fork(ctx context.Context, _ *sdk.CallToolRequest, in forkInput) (*sdk.CallToolResult, *forkOutput, error) {
	out := &forkOutput{VM: s.name(in.VM), Names: []string{}}
	if in.Action == "list" {
		list, err := s.config.VMs.Names(ctx)
		if err != nil {
			return nil, nil, err
		}
		out.Names = append(out.Names, slices.DeleteFunc(list, func(name string) bool { return !s.own(name) })...)
		return nil, out, nil
	}
	if len(in.Names) == 0 || len(in.Names) > maxForks {
		return nil, nil, fmt.Errorf("%d names: want 1 to %d", len(in.Names), maxForks)
	}
	for _, given := range in.Names {
		name, err := s.newName(given)
		if err != nil {
			return nil, nil, err
		}
		if slices.Contains(out.Names, name) {
			return nil, nil, fmt.Errorf("name %s is given twice", name)
		}
		out.Names = append(out.Names, name)
	}
	if in.Action == "remove" {
		var errs []error
		for _, name := range out.Names {
			errs = append(errs, s.config.VMs.Remove(ctx, name))
		}
		return nil, out, errors.Join(errs...)
	}
	return nil, out, s.config.VMs.Fork(ctx, out.VM, out.Names, in.Keep)
}
