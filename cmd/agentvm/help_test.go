package main

import (
	"strings"
	"testing"
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
