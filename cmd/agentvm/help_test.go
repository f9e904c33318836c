package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestFirstHelp keeps what agentvm --help prints on one screen, and true: each command of it exists and is in the whole list.
func TestFirstHelp(t *testing.T) {
	root := (&cli{}).rootCommand()
	text := firstHelp(root)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) >= 40 {
		t.Errorf("%d lines, want less than 40", len(lines))
	}
	for _, line := range lines {
		if len(line) > 100 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	count := 0
	for _, group := range firstCommands {
		for _, name := range group.commands {
			count++
			command, rest, err := root.Find([]string{name})
			switch {
			case err != nil || len(rest) > 0 || command == root || command.Hidden:
				t.Errorf("%s is not a command that the list of all has", name)
			case !strings.Contains(text, command.Short):
				t.Errorf("the text does not say what %s does", name)
			}
		}
	}
	if count < 12 || count > 18 {
		t.Errorf("%d commands, want some fifteen", count)
	}
}

// TestCommandAlone holds that a command which is made without the others is what it is among them.
func TestCommandAlone(t *testing.T) {
	root := (&cli{}).rootCommand()
	for _, entry := range (&cli{}).commands() {
		among, _, err := root.Find([]string{entry.name})
		if err != nil || among.Name() != entry.name {
			t.Errorf("%s is the name of %q: %v", entry.name, among.Name(), err)
			continue
		}
		alone, _, err := (&cli{}).commandFor([]string{entry.name, "--help"}).Find([]string{entry.name})
		if err != nil {
			t.Error(err)
			continue
		}
		sameCommands(t, alone, among)
		if count := len(alone.Parent().Commands()); count > 3 { // besides it completion and help
			t.Errorf("with %s come %d other commands", entry.name, count-1)
		}
	}
	for _, args := range [][]string{nil, {"--debug", "ps"}, {"images"}, {"help", "exec"}, {"__complete", "st"}, {"stat"}} {
		if got, want := len((&cli{}).commandFor(args).Commands()), len(root.Commands()); got != want {
			t.Errorf("%q: %d commands, want all %d", args, got, want)
		}
	}
}

func sameCommands(t *testing.T, a, b *cobra.Command) {
	t.Helper()
	if x, y := a.Short+a.Long+a.UsageString(), b.Short+b.Long+b.UsageString(); x != y || a.GroupID != b.GroupID || a.Hidden != b.Hidden {
		t.Errorf("%s by itself is\n%s\nand among the others\n%s", b.CommandPath(), x, y)
	}
	if len(a.Commands()) != len(b.Commands()) {
		t.Errorf("%s by itself has %d commands, and %d among the others", b.CommandPath(), len(a.Commands()), len(b.Commands()))
		return
	}
	for i := range a.Commands() {
		sameCommands(t, a.Commands()[i], b.Commands()[i])
	}
}

// TestNamesComeFirst holds that a command which is about one VM has its name as its first argument, as port ls does; -n NAME says the same.
func TestNamesComeFirst(t *testing.T) {
	root := (&cli{}).rootCommand()
	for _, path := range []string{"port ls", "port add", "mount ls", "mount add", "mount rm", "net allow", "net deny", "net set", "net log", "net flows"} {
		command, rest, err := root.Find(strings.Fields(path))
		if err != nil || len(rest) > 0 {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if !takesName(command.Use) {
			t.Errorf("%s: its usage is %q", path, command.Use)
		}
		if command.Flags().ShorthandLookup("n") == nil {
			t.Errorf("%s does not take -n", path)
		}
	}
}

// TestCompletionKnowsTheFlag holds that a name which -n gives is an argument for the completion of what follows.
func TestCompletionKnowsTheFlag(t *testing.T) {
	t.Setenv(storeVariable, t.TempDir())
	command, _, err := (&cli{}).rootCommand().Find([]string{"mount", "add"})
	if err != nil {
		t.Fatal(err)
	}
	_, before := command.ValidArgsFunction(command, nil, "")
	if err := command.Flags().Set("name", "dev"); err != nil {
		t.Fatal(err)
	}
	_, after := command.ValidArgsFunction(command, nil, "")
	if before == after {
		t.Errorf("mount add completes the same (%d) with and without -n dev: want names, and then files", after)
	}
}

// TestCountsOfArguments holds that what refuses a number of arguments says how the command is written, instead of cobra's "accepts 1 arg(s)".
func TestCountsOfArguments(t *testing.T) {
	var check func(*cobra.Command)
	check = func(command *cobra.Command) {
		for _, c := range command.Commands() {
			check(c)
		}
		if command.Args == nil {
			return
		}
		for n := range 6 {
			err := command.Args(command, strings.Fields(strings.Repeat("a ", n)))
			if err != nil && strings.Contains(err.Error(), "arg(s)") {
				t.Errorf("%s with %d arguments: %v", command.CommandPath(), n, err)
			}
		}
	}
	check((&cli{}).rootCommand())
}
