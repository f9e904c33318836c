package main

import (
	"slices"

	"github.com/spf13/cobra"

	"agentvm/egress"
	"agentvm/images"
)

// completeFlags has the shell complete the values of flags that mean the same in every command that has them.
func completeFlags(command *cobra.Command) {
	for name, complete := range map[string]cobra.CompletionFunc{"image": completeImageFlag, "net": completeModes, "platform": completePlatforms, "volume": completeVolumeFlag} {
		if command.Flags().Lookup(name) == nil {
			continue
		}
		if err := command.RegisterFlagCompletionFunc(name, complete); err != nil {
			panic(err) // the flag exists, and this is the only place that completes it
		}
	}
	for _, c := range command.Commands() {
		completeFlags(c)
	}
}

// completeModes offers the values of --net.
func completeModes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{
		cobra.CompletionWithDesc(string(egress.Public), "every public address"),
		cobra.CompletionWithDesc(string(egress.Allowlist), "what --allow names"),
		cobra.CompletionWithDesc(string(egress.None), "nothing"),
		cobra.CompletionWithDesc(string(egress.Open), "private networks too"),
	}, cobra.ShellCompDirectiveNoFileComp
}

// completeImageFlag offers the images in the store, and those that can be had without one.
func completeImageFlag(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return knownImages(), cobra.ShellCompDirectiveNoFileComp
}

// completeRun offers the image to run, and after it what the shell does: files.
func completeRun(command *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return completeImageFlag(command, args, prefix)
}

// knownImages returns the names of the images in the store, and of those that can be had without one.
func knownImages() []string {
	list := append(storedImages(), images.AlpineName, images.BuiltinName)
	slices.Sort(list)
	return slices.Compact(list)
}

// completeVolumeFlag offers volumes, and directories.
func completeVolumeFlag(command *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	names, _ := completeVolumes(command, nil, prefix)
	for i, name := range names {
		names[i] = name + ":/"
	}
	return names, cobra.ShellCompDirectiveNoSpace
}

// completeImages offers images in the store that are not among the arguments yet.
func completeImages(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	list := slices.DeleteFunc(storedImages(), func(name string) bool { return slices.Contains(args, name) })
	return list, cobra.ShellCompDirectiveNoFileComp
}

// storedImages returns the names of the images in the store, none when it cannot be read.
func storedImages() (names []string) {
	store, err := images.Config{}.Open()
	if err != nil {
		return nil
	}
	list, err := store.List()
	if err != nil {
		return nil
	}
	for _, image := range list {
		names = append(names, image.Name)
	}
	return slices.Compact(names) // of several platforms
}
