package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/daemon/service"
)

const serviceLong = `Starts VMs when you log in, or when the computer starts: those that were started with --restart always, even if agentvm stop
has ended them since. Other VMs stay as they are.

  Linux    a unit of systemd's user manager; loginctl enable-linger makes it start with the computer, without a login
  macOS    an agent of launchd
  Windows  a task of the task scheduler`

func (c *cli) serviceCommand() *cobra.Command {
	command := &cobra.Command{Use: "service", Short: "Start VMs with the computer", Long: serviceLong, Example: "  agentvm start --restart always dev\n  agentvm service install"}
	command.AddCommand(c.serviceInstallCommand(), c.serviceUninstallCommand(), c.serviceStatusCommand(), c.serviceStartCommand())
	return command
}

func (c *cli) serviceInstallCommand() *cobra.Command {
	var dry bool
	command := &cobra.Command{
		Use: "install [flags]", Short: "Make the system start VMs", Args: cobra.NoArgs,
		Long: "Writes the file that makes the system start the VMs, for this program and this store (AGENTVM_STORE). It replaces an earlier\ninstallation. It starts nothing now: agentvm service start does that.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := serviceFile()
			if err != nil {
				return err
			}
			if dry {
				if f.Path != "" {
					fmt.Fprintf(c.stdout, "# %s\n", f.Path)
				}
				_, err := c.stdout.Write(f.Text)
				return err
			}
			return c.installService(f)
		},
	}
	command.Flags().BoolVar(&dry, "dry-run", false, "print the file that would be written, and write nothing")
	return command
}

// goRun is the path of a program that go run has built.
var goRun = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/go-build\d+/b\d+/exe/`) })

// serviceFile describes this program as a service.
func serviceFile() (f service.File, err error) {
	s := service.Service{Args: []string{"service", "start"}}
	if s.Program, err = os.Executable(); err != nil {
		return f, err
	}
	if goRun().MatchString(filepath.ToSlash(s.Program)) {
		return f, fmt.Errorf("%s is a program of go run, which will be gone: build agentvm first (go build ./cmd/agentvm)", s.Program)
	}
	config, home, err := userDirs()
	if err != nil {
		return f, err
	}
	if runtime.GOOS == "windows" {
		u, err := user.Current()
		if err != nil {
			return f, err
		}
		s.User = u.Username
	} else {
		s.Log = filepath.Join(home, "Library", "Logs", "agentvm.log")
		for _, name := range []string{"AGENTVM_STORE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"} { // where the store and its key are
			if value := os.Getenv(name); value != "" {
				s.Env = append(s.Env, name+"="+value)
			}
		}
	}
	return service.For(runtime.GOOS, s, config, home)
}

func userDirs() (config, home string, err error) {
	if config, err = os.UserConfigDir(); err == nil {
		home, err = os.UserHomeDir()
	}
	return config, home, err
}

func (c *cli) installService(f service.File) error {
	if f.Path == "" {
		return installTask(f.Text)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	if err := writeClientFile(f.Path, f.Text); err != nil {
		return err
	}
	if f.Wanted != "" {
		if err := os.MkdirAll(filepath.Dir(f.Wanted), 0o755); err != nil {
			return err
		}
		if err := os.Remove(f.Wanted); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(f.Path, f.Wanted); err != nil {
			return err
		}
		reloadSystemd()
	}
	fmt.Fprintf(c.stdout, "%s\n", f.Path)
	if f.Wanted != "" {
		fmt.Fprintln(c.stderr, "agentvm: VMs with --restart always start when you log in; with the computer, after: loginctl enable-linger")
	}
	return nil
}

// reloadSystemd has a manager that runs read the unit. One that does not run reads it when it starts.
func reloadSystemd() { _ = exec.Command("systemctl", "--user", "daemon-reload").Run() }

// installTask gives the task to the scheduler, which wants it in a file.
func installTask(text []byte) error {
	file, err := os.CreateTemp("", "agentvm-*.xml")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return scheduler("/Create", "/F", "/TN", service.Name, "/XML", file.Name())
}

func scheduler(args ...string) error {
	output, err := exec.Command("schtasks.exe", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("schtasks %s: %w: %s", args[0], err, printable(string(bytes.TrimSpace(output))))
	}
	return nil
}

func (c *cli) serviceUninstallCommand() *cobra.Command {
	return &cobra.Command{
		Use: "uninstall", Short: "Stop the system from starting VMs", Args: cobra.NoArgs,
		Long: "Removes what install has written. Running VMs continue.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := serviceFile()
			if err != nil {
				return err
			}
			if f.Path == "" {
				return scheduler("/Delete", "/F", "/TN", service.Name)
			}
			err = os.Remove(f.Path)
			if errors.Is(err, fs.ErrNotExist) {
				fmt.Fprintln(c.stderr, "agentvm: it is not installed")
				err = nil
			}
			if f.Wanted == "" || err != nil {
				return err
			}
			if err := os.Remove(f.Wanted); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			reloadSystemd()
			return nil
		},
	}
}

func (c *cli) serviceStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show whether it is installed, and for which VMs", Args: cobra.NoArgs,
		Long: "Says whether install has been called, and lists the VMs that were started with --restart always. Fails when it is not installed.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := serviceFile()
			if err != nil {
				return err
			}
			installed := errors.New("it is not installed (agentvm service install)")
			if f.Path == "" {
				if scheduler("/Query", "/TN", service.Name) == nil {
					installed = nil
				}
			} else if text, err := readHostFile(f.Path); err == nil {
				installed = nil
				if !bytes.Equal(text, f.Text) {
					installed = fmt.Errorf("%s is installed, for another program, store or version (agentvm service install replaces it)", f.Path)
				}
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			store, err := vms()
			if err != nil {
				return err
			}
			names, err := alwaysRun(store)
			for _, name := range names {
				fmt.Fprintln(c.stdout, name)
			}
			return errors.Join(installed, err)
		},
	}
}

// alwaysRun returns the VMs that are to run whenever the system does.
func alwaysRun(store *client.Store) (names []string, err error) {
	for _, name := range store.Names() {
		config, failed := store.Config(name)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, failed))
		} else if config.Restart == client.RestartAlways {
			names = append(names, name)
		}
	}
	return names, err
}

func (c *cli) serviceStartCommand() *cobra.Command {
	return &cobra.Command{
		Use: "start", Short: "Start the VMs now", Args: cobra.NoArgs,
		Long: "Starts the VMs that were started with --restart always and do not run. The system calls it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			store, err := vms()
			if err != nil {
				return err
			}
			names, err := alwaysRun(store)
			return errors.Join(err, each(names, func(name string) error {
				if alive, err := store.Alive(name); err != nil || alive {
					return err
				}
				config, err := store.Config(name)
				if err == nil {
					err = c.boot(ctx, store, name, config, false)
				}
				if errors.Is(err, client.ErrRunning) { // since we looked
					return nil
				}
				return err
			}))
		},
	}
}
