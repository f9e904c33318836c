package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"agentvm/daemon"
	"agentvm/snapshot"
)

func (c *cli) snapshotExportCommand() *cobra.Command {
	return &cobra.Command{
		Use: "export SNAPSHOT FILE", Short: "Write a snapshot as one compressed stream (- for standard output)", Args: counted(2, 2),
		ValidArgsFunction: completeSnapshots(1),
		Long:              "Writes a snapshot, with what it is layered on, as one stream, compressed with zstd. Of how its VM was started it has what is no secret and not of this computer.",
		Example:           "  agentvm snapshot export clean clean.snap.zst\n  agentvm snapshot export clean - | ssh other agentvm snapshot import - clean",
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellPatience)
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
	if to == "-" {
		if isTerminal(c.stdout) {
			return errors.New("a snapshot would go to the terminal: redirect standard output")
		}
		return missing(name, store.Export(ctx, name, c.counting("exporting "+name, c.stdout)))
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".export-*") // 0600: it has the VM's memory in it
	if err != nil {
		return fmt.Errorf("export snapshot %s: %w", name, err)
	}
	err = store.Export(ctx, name, c.counting("exporting "+name, f))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		return errors.Join(missing(name, err), os.Remove(f.Name()))
	}
	return nil
}

func (c *cli) snapshotImportCommand() *cobra.Command {
	return &cobra.Command{
		Use: "import FILE [SNAPSHOT]", Short: "Make a snapshot of an exported one (- for standard input)", Args: counted(1, 2),
		Long: `Reads what agentvm snapshot export has written, and checks it. Without a name the snapshot gets the file's, up to its first dot. Whoever
has made the file decides what runs in a VM that goes on from it.`,
		Example: "  agentvm snapshot import clean.snap.zst\n  agentvm snapshot import - clean <clean.snap.zst",
		RunE: func(cmd *cobra.Command, args []string) error {
			name, _, _ := strings.Cut(filepath.Base(args[0]), ".")
			if len(args) == 2 {
				name = args[1]
			}
			s := newSession(shellPatience)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.importSnapshot(ctx, args[0], name))
		},
	}
}

func (c *cli) importSnapshot(ctx context.Context, file, name string) error {
	from := c.stdin
	if file != "-" {
		var err error
		if from, err = os.Open(file); err != nil {
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
	meter := c.counting("importing "+name, io.Discard)
	if err := store.Import(ctx, io.TeeReader(from, meter), name); err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, name)
	return forgetConfig(store, name) // of one that had this name
}

// snapshotInspection is what snapshot inspect prints.
type snapshotInspection struct {
	snapshotInfo
	Meta     snapshot.Meta   `json:"meta"`
	Config   *daemon.Config  `json:"config,omitempty"`  // what its VM was started with; not of one that was imported
	Started  *daemon.Started `json:"started,omitempty"` // what the file itself says of that
	Own      bool            `json:"own"`               // this store has written it, and takes it as it is
	Verified bool            `json:"verified,omitempty"`
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
		return missing(name, err)
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
	if started, err := daemon.StartedAs(file.Meta()); err == nil {
		shown.Started = &started
	}
	shown.Own = file.Own()
	if verify {
		if err := file.Verify(ctx); err != nil {
			return err
		}
	}
	encoder := json.NewEncoder(c.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(shown)
}

// isFull says that a disk had no room.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) }

// countingTime is how often long work says on a terminal how far it is.
const countingTime = time.Second

// counting passes writes on, and says on standard error how many bytes there were, where that is a terminal.
func (c *cli) counting(what string, to io.Writer) io.Writer {
	if !isTerminal(c.stderr) {
		return to
	}
	return &countingWriter{to: to, what: what, out: c.stderr, last: time.Now()}
}

type countingWriter struct {
	to    io.Writer
	out   io.Writer
	what  string
	bytes int64
	last  time.Time
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.bytes += int64(n)
	if now := time.Now(); now.Sub(w.last) >= countingTime {
		w.last = now
		fmt.Fprintf(w.out, "agentvm: %s: %s\n", w.what, bytesText(w.bytes))
	}
	return n, err
}
