package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/images"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/host/private"
)

// Exit codes of agentvm itself. Every other code is that of the command that was run.
const (
	exitFailure    = 1   // commands that run nothing
	exitTimeout    = 124 // as timeout(1)
	exitOwnFailure = 125 // exec, shell and debug could not do their work, as docker and env(1)
	exitSignal     = 128 // plus the signal's number
)

// cli is one invocation: its streams and global flags.
type cli struct {
	stdin          *os.File
	stdout, stderr *os.File
	debug          bool
	facets         facets
	log            *slog.Logger
	lines          *lines   // of a command, into which no message falls
	confined       bool     // a layer of internal/daemon/confine is in force for this process
	args           []string // of the program, without its name
}

// exitStatus is an error that only says which code to exit with: everything else has been printed.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// failure is an error with the code to exit with.
type failure struct {
	error
	code int
}

func (f failure) Unwrap() error { return f.error }

// main runs the command line and returns the exit code.
func (c *cli) main(args []string) int {
	c.args = args
	root := c.commandFor(args)
	root.SetArgs(args)
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	return c.report(root.ExecuteContext(context.Background()))
}

// report prints err and returns the exit code that it stands for.
func (c *cli) report(err error) int {
	var status exitStatus
	var failed failure
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &failed):
		fmt.Fprintln(c.stderr, "agentvm:", adviseStore(err))
		return failed.code
	default:
		fmt.Fprintln(c.stderr, "agentvm:", adviseStore(err))
		return exitFailure
	}
}

// storeVariable names the store's directory. An error text with this word says already what to do.
const storeVariable = "AGENTVM_STORE"

// adviseStore adds what to do to an error about a file of the store that cannot be written or whose path leads through a file.
func adviseStore(err error) error {
	var file *fs.PathError
	dir, unknown := images.DefaultDir()
	if !errors.As(err, &file) || unknown != nil || strings.Contains(err.Error(), storeVariable) {
		return err
	}
	if !errors.Is(file, fs.ErrPermission) && !errors.Is(file, syscall.ENOTDIR) && !errors.Is(file, syscall.EROFS) {
		return err
	}
	for at := file.Path; ; at = filepath.Dir(at) {
		switch at {
		case dir:
			return fmt.Errorf("%w (set %s to a directory that can be written)", err, storeVariable)
		case filepath.Dir(at):
			return err
		}
	}
}

// runs makes f the action of a command whose own failures have code exitOwnFailure, also those of its flags.
func runs(command *cobra.Command, f func(ctx context.Context, args []string) error) *cobra.Command {
	return withExitCode(command, exitOwnFailure, f)
}

// withExitCode makes f the action of a command whose own failures have a code, also those of its flags.
func withExitCode(command *cobra.Command, code int, f func(ctx context.Context, args []string) error) *cobra.Command {
	own := func(err error) error {
		var status exitStatus
		var failed failure
		if err == nil || errors.As(err, &status) || errors.As(err, &failed) {
			return err
		}
		return failure{err, code}
	}
	check := command.Args
	command.Args = func(cmd *cobra.Command, args []string) error {
		if check == nil {
			return nil
		}
		return own(check(cmd, args))
	}
	command.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return own(flagError(cmd, err)) })
	command.RunE = func(cmd *cobra.Command, args []string) error { return own(f(cmd.Context(), args)) }
	return command
}

// flagError adds to the error about an unknown flag which one may have been meant.
func flagError(cmd *cobra.Command, err error) error {
	if shell, _, missing := cmd.Find([]string{"shell"}); missing == nil && !cmd.HasParent() {
		cmd = shell // which agentvm without a command is, and whose help shows its flags
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var list, sameLetter []string
		name := unknown.GetSpecifiedName()
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				list = append(list, f.Name)
			}
			if !f.Hidden && f.Shorthand == "" && strings.HasPrefix(f.Name, name) {
				sameLetter = append(sameLetter, "--"+f.Name)
			}
		})
		near := ""
		switch {
		case len(name) > 1:
			if near = nearest(name, list); near != "" {
				near = "--" + near
			}
		case len(sameLetter) <= 3: // such as start -i, for --image
			near = strings.Join(sameLetter, ", ")
		}
		if near != "" {
			return fmt.Errorf("%w: did you mean %s? (see %s --help)", err, near, cmd.CommandPath())
		}
	}
	return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
}

// printJSON prints one value on one line.
func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// maxHostFile bounds files that are read into memory: certificates and policies, in bytes.
const maxHostFile = 16 << 20

// hostGuard knows which directories of the host a guest could change. Every path that the user gives on the command line is opened with
// it, so that no link is followed that a guest has made.
func hostGuard() (*hostpath.Guard, error) {
	dir, err := images.DefaultDir()
	if err != nil {
		return nil, err
	}
	return hostpath.Known(dir)
}

// readHostFile reads a file that the user has named.
func readHostFile(path string) ([]byte, error) {
	guard, err := hostGuard()
	if err != nil {
		return nil, err
	}
	return guard.ReadFile(path, hostpath.Identity{}, maxHostFile)
}

// readSecretFile reads a file with keys that the user has named. One that others may read or change is refused: its keys may be theirs.
func readSecretFile(path string) (_ []byte, err error) {
	file, err := openHostFile(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := private.CheckSecret(file); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxHostFile+1))
	if err == nil && len(text) > maxHostFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxHostFile)
	}
	return text, err
}

// openHostFile opens a file that the user has named, with flags of package os.
func openHostFile(path string, flags int) (*os.File, error) {
	guard, err := hostGuard()
	if err != nil {
		return nil, err
	}
	return guard.OpenFile(path, hostpath.Identity{}, flags, 0o666)
}

// createHostFile makes a file that the user has named, or empties the one that is there.
func createHostFile(path string) (*os.File, error) {
	return openHostFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
}
