package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/images"
	"agentvm/internal/host/platform"
)

// platformValue is a platform as --platform takes it; empty when it is not given.
type platformValue platform.Architecture

func (v *platformValue) Set(text string) error {
	of, err := platform.Parse(text)
	*v = platformValue(of)
	return err
}

func (v *platformValue) String() string { return platform.Architecture(*v).Platform() }

func (v *platformValue) Type() string { return "PLATFORM" }

// platformFlag adds --platform. The usage says what a command does without it.
func platformFlag(flags *pflag.FlagSet, to *platform.Architecture, without string) {
	flags.Var((*platformValue)(to), "platform", platform.Names()+" ("+without+")")
}

// anyPlatform says what a command that takes an image of the store does without --platform.
const anyPlatform = "default the first of these that the image has"

// imageText is an image in a list, with its platform unless that is the default or not known.
func imageText(name, of string) string {
	a, err := platform.Parse(of)
	if err != nil {
		return name
	}
	return images.Key{Name: name, Architecture: a}.String()
}

// completePlatforms offers the values of --platform.
func completePlatforms(*cobra.Command, []string, string) (list []string, _ cobra.ShellCompDirective) {
	for _, a := range platform.Supported() {
		list = append(list, a.Platform())
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// storeFor opens the store for a platform; for all when it is empty.
func (c *cli) storeFor(of platform.Architecture, progress images.ProgressFunc) (*images.Store, error) {
	store, err := c.store(progress)
	if err != nil {
		return nil, err
	}
	return store.For(of), nil
}
