package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/images"
	"agentvm/internal/host/platform"
	"agentvm/vm"
)

const commitLong = `Makes an image of a VM's files as they are, without mounts such as /proc, /tmp and directories of the host. New VMs can start
from it. Programs that run meanwhile may be caught while they write: stop them first. Memory and
programs are not in an image: agentvm snapshot keeps those.

When the VM was killed soon after files had been written, these may be incomplete. No image is made then, and the error names them:
write them again, or make it with --force.`

func (c *cli) commitCommand() *cobra.Command {
	var quiet, force bool
	command := &cobra.Command{
		Use: "commit [flags] NAME IMAGE[:TAG]", Short: "Make an image of a VM's files", Long: commitLong,
		Example: "  agentvm exec -n dev \"apk add make gcc\"\n  agentvm commit dev build:1\n  agentvm exec --image build:1 \"make --version\"",
		Args:    counted(2, 2), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(withVM(ctx, args[0], func(v *client.VM) error { return c.commit(ctx, v, args[1], quiet, force) }))
		},
	}
	command.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not say what was left out")
	command.Flags().BoolVarP(&force, "force", "f", false, "include files that may be incomplete")
	return command
}

func (c *cli) commit(ctx context.Context, v *client.VM, image string, quiet, force bool) error {
	store, err := c.storeOf(ctx, v)
	if err != nil {
		return err
	}
	packed, unpacked := io.Pipe()
	filtered, personal := io.Pipe()
	report := make(chan vm.CopyStats, 1)
	go func() {
		made, err := v.Files().CreateTar(ctx, []string{"/"}, unpacked)
		if err == nil && made.Torn > 0 && !force { // an image is started from again and again, and its users do not see what is missing
			err = fmt.Errorf("no image is made: %s; write them again, or use --force", tornText(made))
		}
		_ = unpacked.CloseWithError(err) // nil: the end
		report <- made
	}()
	go func() { _ = personal.CloseWithError(impersonal(packed, personal)) }()
	progress := c.newProgress()
	made, err := store.Import(ctx, image, io.TeeReader(filtered, progress.counting("reading the files of "+v.Name(), io.Discard, 0)))
	progress.close()
	_, _ = filtered.CloseWithError(errGivenUp), packed.CloseWithError(errGivenUp)
	left := <-report
	if err != nil {
		return err
	}
	if !quiet {
		c.printSkipped(left)
	}
	c.printTorn(left)
	fmt.Fprintln(c.stdout, made.Name)
	return nil
}

// storeOf opens the store for the platform of a running VM, whatever its files say.
func (c *cli) storeOf(ctx context.Context, v *client.VM) (*images.Store, error) {
	list, err := vms()
	if err != nil {
		return nil, err
	}
	status, err := list.Status(ctx, v.Name())
	if err == nil && status.Info == nil {
		err = client.ErrNotRunning
	}
	if err != nil {
		return nil, err
	}
	of, err := platform.ParseOptional(status.Info.Platform)
	if err != nil {
		return nil, err
	}
	return c.storeFor(of, nil)
}

var errGivenUp = errors.New("it is not needed any more")

// impersonal copies an archive without the files that each VM must have for itself. The archive comes from the guest and may hold anything,
// as the user who makes an image of it accepts.
func impersonal(from io.Reader, to io.Writer) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, from) // what its sender has to say at the end
			return errors.Join(err, out.Close())
		}
		if err != nil {
			return fmt.Errorf("the guest's archive: %w", err)
		}
		switch path.Clean("/" + header.Name) {
		case "/etc/machine-id", "/var/lib/dbus/machine-id":
			continue
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
