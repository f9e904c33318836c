//go:build manual

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// main, with the tag manual, is a program that writes what scripts/release puts beside agentvm into the directory that is its first
// argument: man1 with a man page for each command, dated by the second argument in RFC 3339, and completions with one script for each
// shell. It is a program of its own so that agentvm does not have what makes man pages linked into it.
func main() {
	if err := writeManual(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func writeManual(dir, at string) error {
	date, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return err
	}
	pages, completions := filepath.Join(dir, "man1"), filepath.Join(dir, "completions")
	for _, d := range []string{pages, completions} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	root := (&cli{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}).rootCommand()
	for name, write := range map[string]func(file string) error{
		"agentvm.bash": func(file string) error { return root.GenBashCompletionFileV2(file, true) },
		"_agentvm":     root.GenZshCompletionFile,
		"agentvm.fish": func(file string) error { return root.GenFishCompletionFile(file, true) },
		"agentvm.ps1":  root.GenPowerShellCompletionFileWithDesc,
	} {
		if err := write(filepath.Join(completions, name)); err != nil {
			return err
		}
	}
	withoutTag(root)
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "agentvm " + version, Manual: "agentvm"}
	return doc.GenManTree(root, header, pages)
}

// withoutTag has the pages of command and of those below it leave out that cobra made them, and when.
func withoutTag(command *cobra.Command) {
	command.DisableAutoGenTag = true
	for _, c := range command.Commands() {
		withoutTag(c)
	}
}
