package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/internal/settings"
	"agentvm/internal/share/mount"
)

// mountPathFlag is --mask or --unprotected, which add a path to the mount before them.
type mountPathFlag struct {
	mounts *[]string
	what   string // in the error
	add    func(mount *string, path string) error
}

func (m mountPathFlag) String() string { return "" }
func (m mountPathFlag) Type() string   { return "PATH" }

func (m mountPathFlag) Set(path string) error {
	last := len(*m.mounts) - 1
	if last < 0 {
		return fmt.Errorf("%s comes after the --mount that it belongs to", m.what)
	}
	return m.add(&(*m.mounts)[last], path)
}

// addUnprotected adds an unprotected path to a mount's text; "." is all.
func addUnprotected(text *string, name string) error {
	spec, err := mount.Parse(*text)
	if err != nil {
		return err
	}
	if name != "." {
		if name, err = mount.CleanMask(name); err != nil {
			return err
		}
	}
	spec.Unprotected = append(spec.Unprotected, name)
	*text = spec.String()
	return nil
}

// addMask adds a mask to a mount's text.
func addMask(text *string, mask string) error {
	spec, err := mount.Parse(*text)
	if err != nil {
		return err
	}
	if mask, err = mount.CleanMask(mask); err != nil {
		return err
	}
	spec.Masks = append(spec.Masks, mask)
	*text = spec.String()
	return nil
}

// registerProject registers the flags about the project file, which is then read before the command runs.
func (f *vmFlags) registerProject(command *cobra.Command) {
	flags := command.Flags()
	flags.Bool("no-project", false, "do not read "+settings.Name+" of this directory or one above it")
	flags.Bool("trust-project", false, "let "+settings.Name+" give what it must not by itself: directories elsewhere, the host's variables, ports and private networks, and more than at its last use")
	command.PreRunE = func(command *cobra.Command, args []string) error {
		_, err := f.readProject(command, args)
		if err != nil && command.Name() != "start" && command.Name() != "config" {
			return failure{err, exitOwnFailure}
		}
		return err
	}
}

// readProject sets the flags that are not given as the project file says. It returns nil when there is none, or the VM is one
// that has been made before.
func (f *vmFlags) readProject(command *cobra.Command, args []string) (*settings.File, error) {
	flags := command.Flags()
	if off, _ := flags.GetBool("no-project"); off || flags.Changed("name") || command.Name() == "start" && isMade(args[0]) {
		return nil, nil
	}
	trusted, _ := flags.GetBool("trust-project")
	file, err := settings.Load(".")
	if errors.Is(err, settings.ErrNotFound) {
		return nil, compareProject(command, file, false, trusted)
	}
	if err != nil {
		return nil, err
	}
	if on, _ := command.Root().PersistentFlags().GetBool("debug"); on {
		fmt.Fprintf(command.ErrOrStderr(), "agentvm: settings of %s\n", file.Path)
	}
	if err := checkProject(file, trusted); err != nil {
		return nil, err
	}
	if err := compareProject(command, file, true, trusted); err != nil {
		return nil, err
	}
	if givesPolicy(flags, file) {
		f.policyFile = file.Path
	}
	if err := setFlags(flags, file); err != nil {
		return nil, err
	}
	f.project = file
	return file, f.maskProject(file)
}

// isMade says whether a VM of the name exists. Such a VM keeps what it was started with, in whatever directory it is started again.
func isMade(name string) bool {
	store, err := vms()
	if err != nil {
		return false
	}
	_, err = store.Config(name)
	return err == nil
}

// policySettings are the keys of those that --policy replaces.
func policySettings() []string {
	keys := []string{"network.mode"}
	for _, s := range settings.Rules() {
		keys = append(keys, s.Key)
	}
	return keys
}

// isFromFile reports whether a flag gets its value from a project file, if that has one: the user has not given it, nor one that replaces it.
func isFromFile(flags *pflag.FlagSet, s settings.Setting) bool {
	switch {
	case s.Flag == "" || flags.Lookup(s.Flag) == nil || flags.Changed(s.Flag):
		return false
	case s.Part == settings.OfNetwork && withoutNetwork(flags):
		return false
	case flags.Changed("policy") && slices.Contains(policySettings(), s.Key):
		return false
	}
	return true
}

// givesPolicy reports whether a part of the network policy is from the file. A mode of the user's replaces the file's.
func givesPolicy(flags *pflag.FlagSet, file *settings.File) bool {
	return !flags.Changed("net") && slices.ContainsFunc(settings.All(), func(s settings.Setting) bool {
		return slices.Contains(policySettings(), s.Key) && len(file.Values[s.Key]) > 0 && isFromFile(flags, s)
	})
}

// setFlags gives each flag that the user has not given its value from the file.
func setFlags(flags *pflag.FlagSet, file *settings.File) error {
	var from []settings.Setting // before the first of them is set
	for _, s := range settings.All() {
		if isFromFile(flags, s) {
			from = append(from, s)
		}
	}
	var errs []error
	for _, s := range from {
		for i, value := range file.Values[s.Key] {
			if err := flags.Set(s.Flag, value); err != nil {
				errs = append(errs, file.Errorf(s.Key, i, "%w", err))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// maskProject hides what the file masks in every mount that shows it, also in those of flags.
func (f *vmFlags) maskProject(file *settings.File) error {
	dir := realPath(filepath.Dir(file.Path))
	for i := range f.mounts {
		spec, err := mount.Parse(f.mounts[i])
		if err != nil {
			return err
		}
		for _, mask := range file.Values["masks"] {
			rel, err := filepath.Rel(realPath(spec.HostPath), filepath.Join(dir, filepath.FromSlash(mask)))
			if err != nil || rel == "." || !filepath.IsLocal(rel) {
				continue
			}
			if err := addMask(&f.mounts[i], filepath.ToSlash(rel)); err != nil {
				return err
			}
		}
	}
	return nil
}

// realPath returns the absolute path without links, as far as it exists.
func realPath(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	rest := ""
	for there := path; ; there = filepath.Dir(there) {
		if real, err := filepath.EvalSymlinks(there); err == nil {
			return filepath.Join(real, rest)
		}
		if there == filepath.Dir(there) {
			return path
		}
		rest = filepath.Join(filepath.Base(there), rest)
	}
}

const configLong = `Prints the settings of a VM that is started in this directory: those of ` + settings.Name + `, changed by the
flags that are given, as such a file. With --check it prints nothing but what is wrong.`

func (c *cli) configCommand() *cobra.Command {
	var f vmFlags
	var asJSON, check bool
	command := &cobra.Command{
		Use: "config [flags]", Short: "Print the settings of this directory's VMs", Long: configLong,
		Example: "  agentvm config\n  agentvm config --check\n  agentvm config --no-project --json", Args: cobra.NoArgs,
	}
	flags := command.Flags()
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.BoolVar(&check, "check", false, "only say whether the settings are right")
	f.register(command)
	command.PreRunE = nil
	command.RunE = func(command *cobra.Command, args []string) error {
		file, err := f.readProject(command, args)
		if err != nil {
			return err
		}
		config, err := f.config()
		if err == nil {
			err = config.Validate()
		}
		if err != nil || check {
			return err
		}
		shown := flagSettings(flags, file)
		if asJSON {
			return printJSON(c.stdout, shown)
		}
		return shown.Encode(c.stdout)
	}
	return command
}

// flagSettings returns the flags as a project file, with what only a file can set. The masks are in the mounts.
func flagSettings(flags *pflag.FlagSet, file *settings.File) *settings.File {
	shown := &settings.File{Values: make(map[string][]string)}
	if file != nil {
		shown.Path, shown.Sidecars = file.Path, file.Sidecars
		maps.Copy(shown.Values, file.Values)
		delete(shown.Values, "masks")
	}
	for _, s := range settings.All() {
		flag := flags.Lookup(s.Flag)
		if flag == nil {
			continue
		}
		shown.Values[s.Key] = flagTexts(flag)
	}
	return shown
}
