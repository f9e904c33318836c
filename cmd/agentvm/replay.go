package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/internal/host/hostpath"
	"agentvm/internal/work/record"
	"agentvm/vm"
)

const replayLong = `Shows a recording of agentvm exec --record FILE: commands, their output, changes of files and what the network policy
decided, in the time that it took. Characters with which a program could control the terminal are shown as
^X; with --raw they reach it.`

func recordFlag(flags *pflag.FlagSet, path *string) {
	flags.StringVar(path, "record", "", "write the command, its output with its timing and the network's verdicts to a new `FILE` for agentvm replay")
}

// recordTo opens the file of --record and has config record there. done closes it, after the VM, and reports what could not be written.
func recordTo(path string, config *vm.Config) (done func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := openRecording(path, *config)
	if err != nil {
		return nil, err
	}
	config.Recorder = vm.NewRecorder(file, 0)
	return func() error { return errors.Join(config.Recorder.Err(), file.Close()) }, nil
}

// openRecording makes the file of --record, which is in no mount that the VM can write.
func openRecording(path string, config vm.Config) (*os.File, error) {
	// A new file has mode 600; others might read one that is there already.
	file, err := config.OpenOutput(path, hostpath.Identity{}, os.O_EXCL)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("--record: %s is there already: remove it, or name another file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--record: %w", err)
	}
	return file, nil
}

// replay is what agentvm replay does.
type replay struct {
	cast        string
	asJSON, raw bool
	speed       float64
	idleLimit   time.Duration
}

func (c *cli) replayCommand() *cobra.Command {
	var f replay
	command := &cobra.Command{
		Use: "replay [flags] FILE", Short: "Show a recording of exec --record", Long: replayLong, Args: counted(1, 1),
		Example: "  agentvm replay session.jsonl --idle-limit 1s\n  agentvm replay session.jsonl --cast session.cast\n  agentvm replay session.jsonl --json",
	}
	flags := command.Flags()
	flags.Float64Var(&f.speed, "speed", 1, "show it this `TIMES` as fast")
	durationFlag(flags, &f.idleLimit, "idle-limit", "", 0, "shorten pauses to this time, such as 500ms (default: none)")
	flags.BoolVar(&f.raw, "raw", false, "pass what the VM's programs have printed to the terminal as it is")
	flags.BoolVar(&f.asJSON, "json", false, "print the checked events, one JSON object a line")
	flags.StringVar(&f.cast, "cast", "", "write an asciicast v2 to a new `FILE`, for asciinema and its web player")
	command.MarkFlagsMutuallyExclusive("json", "cast", "raw")
	return runs(command, func(ctx context.Context, args []string) error {
		if !(f.speed >= 0.001 && f.speed <= 1e6) {
			return fmt.Errorf("--speed %g: want 0.001 to 1000000", f.speed)
		}
		file, err := openHostFile(args[0], os.O_RDONLY)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		d, err := record.NewReader(file)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		return c.replay(ctx, &f, d)
	})
}

func (c *cli) replay(ctx context.Context, f *replay, d *record.Reader) error {
	if f.cast != "" {
		var b bytes.Buffer // a recording that turns out to be broken leaves no file
		if err := record.WriteCast(&b, d); err != nil {
			return err
		}
		guard, err := hostGuard()
		if err != nil {
			return err
		}
		file, err := guard.OpenFile(f.cast, hostpath.Identity{}, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("--cast: %s is there already: remove it, or name another file", f.cast)
		}
		if err != nil {
			return fmt.Errorf("--cast: %w", err)
		}
		_, err = file.Write(b.Bytes())
		return errors.Join(err, file.Close())
	}
	var last time.Duration
	texts := make(map[[2]uint64]*record.Text)
	for {
		e, err := d.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if f.asJSON {
			line, err := record.Encode(e)
			if err == nil {
				_, err = c.stdout.Write(line)
			}
			if err != nil {
				return err
			}
			continue
		}
		at := time.Duration(e.At) * time.Microsecond
		pause := at - last
		last = at
		if f.idleLimit > 0 {
			pause = min(pause, f.idleLimit)
		}
		select {
		case <-time.After(time.Duration(float64(pause) / f.speed)):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := c.show(f, e, d.Terminal(e.ID), texts); err != nil {
			return err
		}
	}
}

// show prints an event. texts has what of each command's streams was not printed yet.
func (c *cli) show(f *replay, e *record.Event, terminal bool, texts map[[2]uint64]*record.Text) error {
	var text string
	switch e.Kind {
	case record.Output:
		if f.raw {
			_, err := c.stdout.Write(e.Data())
			return err
		}
		key := [2]uint64{e.ID, uint64(e.Stream)}
		if texts[key] == nil {
			texts[key] = &record.Text{Plain: true, Terminal: terminal}
		}
		text = texts[key].Next(e.Data())
	case record.End:
		for stream := range uint64(2) {
			key := [2]uint64{e.ID, stream + 1}
			if t := texts[key]; t != nil {
				text += t.Next(nil)
				delete(texts, key)
			}
		}
		fallthrough
	default:
		if title := e.Title(); title != "" {
			text += title + "\n"
		}
	}
	_, err := io.WriteString(c.stdout, text)
	return err
}
