package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/settings"
	"agentvm/internal/storage/snapshot"
)

func (c *cli) snapshotExportCommand() *cobra.Command {
	return &cobra.Command{
		Use: "export SNAPSHOT FILE", Short: "Write a snapshot as one compressed stream (- for standard output)", Args: counted(2, 2),
		ValidArgsFunction: completeSnapshots(1),
		Long:              "Writes a snapshot, with the layers below it, as one stream, compressed with zstd. The stream has the settings of its VM that are neither secret nor about this host.",
		Example:           "  agentvm snapshot export clean clean.snap.zst\n  agentvm snapshot export clean - | ssh other agentvm snapshot import - clean",
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.exportSnapshot(ctx, args[0], args[1]))
		},
	}
}

func (c *cli) exportSnapshot(ctx context.Context, name, to string) error {
	store, err := snapshots()
	if err != nil {
		return err
	}
	progress := c.newProgress()
	defer progress.close()
	if to == "-" {
		if isTerminal(c.stdout) {
			return errors.New("a snapshot would go to the terminal: redirect standard output")
		}
		return adviseMissing(name, store.Export(ctx, name, progress.counting("exporting "+name, c.stdout, 0)))
	}
	guard, err := hostGuard()
	if err != nil {
		return err
	}
	place, err := guard.OpenNew(to, hostpath.Identity{})
	if err != nil {
		return fmt.Errorf("export snapshot %s: %w", name, err)
	}
	defer place.Close()
	dir, err := place.ParentRoot()
	if err != nil {
		return fmt.Errorf("export snapshot %s: %w", name, err)
	}
	defer dir.Close()
	f, err := atomicfile.CreateIn(dir, place.Base()) // for this user only: it has the VM's memory in it
	if err != nil {
		return fmt.Errorf("export snapshot %s: %w", name, err)
	}
	defer f.Discard()
	if err := store.Export(ctx, name, progress.counting("exporting "+name, f, 0)); err != nil {
		return adviseMissing(name, err)
	}
	return f.Commit()
}

func (c *cli) snapshotImportCommand() *cobra.Command {
	var maxSize string
	command := &cobra.Command{
		Use: "import [flags] FILE [SNAPSHOT]", Short: "Make a snapshot of an exported one (- for standard input)", Args: counted(1, 2),
		Long: `Reads what agentvm snapshot export has written, and checks it. Without a name the snapshot gets the file's, up to its first dot. Whoever
made the file decides what runs in a VM that continues from it. Without --max-size the snapshot may have 32 GiB, and above 64 MiB at most 200
times the file's own size.`,
		Example: "  agentvm snapshot import clean.snap.zst\n  agentvm snapshot import - clean <clean.snap.zst",
		RunE: func(cmd *cobra.Command, args []string) error {
			name, _, _ := strings.Cut(filepath.Base(args[0]), ".")
			if len(args) == 2 {
				name = args[1]
			}
			var limits snapshot.ImportLimits
			if maxSize != "" {
				n, err := settings.ParseSize(maxSize, 20)
				if err != nil || n == 0 || n > math.MaxInt64 {
					return fmt.Errorf("--max-size %q: want a size such as 768M or 2G", maxSize)
				}
				limits.Size = int64(n)
			}
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.importSnapshot(ctx, args[0], name, limits))
		},
	}
	command.Flags().StringVar(&maxSize, "max-size", "", "the maximum `BYTES` of the snapshot, such as 768M or 2G, however small the file is")
	return command
}

func (c *cli) importSnapshot(ctx context.Context, file, name string, limits snapshot.ImportLimits) error {
	from := c.stdin
	if file != "-" {
		var err error
		if from, err = openHostFile(file, os.O_RDONLY); err != nil {
			return fmt.Errorf("import snapshot: %w", err)
		}
		defer from.Close()
	} else if isTerminal(from) {
		return errors.New("import snapshot: standard input is a terminal, not a snapshot")
	}
	store, err := snapshots()
	if err != nil {
		return err
	}
	progress := c.newProgress()
	defer progress.close()
	meter := progress.counting("importing "+name, io.Discard, fileSize(from))
	if err := store.Import(ctx, io.TeeReader(from, meter), name, limits); err != nil {
		if errors.Is(err, snapshot.ErrLimit) {
			err = fmt.Errorf("%w: if you know who has made it, say with --max-size how large it may be", err)
		}
		return err
	}
	progress.close()
	fmt.Fprintln(c.stdout, name)
	return forgetConfig(store, name) // of one that had this name
}

// snapshotInspection is what snapshot inspect prints.
type snapshotInspection struct {
	snapshotInfo
	Meta     snapshot.Meta   `json:"meta"`
	Config   *client.Config  `json:"config,omitempty"`  // what its VM was started with; not of one that was imported
	Started  *client.Started `json:"started,omitempty"` // what the file itself says of that
	Own      bool            `json:"own"`               // this store has written it, and takes it as it is
	Verified bool            `json:"verified,omitempty"`
	Unhashed bool            `json:"unhashed,omitempty"` // an earlier version made it: of its disk only the structure is verified
}

func (c *cli) snapshotInspectCommand() *cobra.Command {
	var verify bool
	command := &cobra.Command{
		Use: "inspect [flags] SNAPSHOT", Short: "Print everything about a snapshot as JSON", Args: counted(1, 1), ValidArgsFunction: completeSnapshots(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.inspectSnapshot(cmd.Context(), args[0], verify)
		},
	}
	command.Flags().BoolVar(&verify, "verify", false, "read all of it and compare it with its hashes")
	return command
}

func (c *cli) inspectSnapshot(ctx context.Context, name string, verify bool) error {
	store, err := snapshots()
	if err != nil {
		return err
	}
	file, err := store.Open(name)
	if err != nil {
		return adviseMissing(name, err)
	}
	defer file.Close()
	entry, err := entryOf(store, name)
	if err != nil {
		return err
	}
	shown := snapshotInspection{snapshotInfo: infoOf(entry), Meta: file.Meta(), Verified: verify}
	if config, err := keptConfig(file.Path()); err == nil && config.StoreDir != "" {
		shown.Config = &config
	}
	if started, err := client.StartedAs(file.Meta()); err == nil {
		shown.Started = &started
	}
	shown.Own, shown.Unhashed = file.Own(), !file.DiskHashed()
	if verify {
		if err := file.Verify(ctx); err != nil {
			return err
		}
		if shown.Unhashed {
			fmt.Fprintf(c.stderr, "agentvm: snapshot %s: the contents of its disk have no hashes, because an earlier version made it: only their structure is verified\n", name)
		}
	}
	encoder := json.NewEncoder(c.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(shown)
}
