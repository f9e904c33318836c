package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/supervisor"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
)

// version is the number of the next release. scripts/release has the linker put the release's own there.
var version = "0.1.0"

// versions says what this program is made of. Digests are "sha256:" and hex digits.
type versions struct {
	Version  string          `json:"version"`
	Revision string          `json:"revision,omitempty"` // of the source, when it was built from a clone
	Kernel   string          `json:"kernel"`
	Guests   []guestVersions `json:"guests"`
	Protocol int             `json:"protocol"` // between host and guest
	Go       string          `json:"go"`
	Platform string          `json:"platform"`
	Newest   string          `json:"newest,omitempty"` // release, when it was asked for
}

// guestVersions are those of what runs on one platform of VMs.
type guestVersions struct {
	Platform   string `json:"platform"`
	Machine    string `json:"machine"`
	Supervisor string `json:"supervisor"`
}

func (c *cli) versionCommand() *cobra.Command {
	var asJSON, check bool
	var from string
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of agentvm and of what is built into it",
		Long:  versionLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := currentVersions()
			if check {
				var err error
				if v.Newest, err = newestRelease(cmd.Context(), cmp.Or(from, os.Getenv("AGENTVM_RELEASES"), releases)); err != nil {
					return err
				}
			} else if from != "" {
				return errors.New("--from is for --check, without which nothing is asked")
			}
			if asJSON {
				return printJSON(c.stdout, v)
			}
			return v.print(c.stdout)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	command.Flags().BoolVar(&check, "check", false, "ask for the newest release, and say whether it is newer than this one")
	command.Flags().StringVar(&from, "from", "", "the `URL` of the folder of the newest release, for --check (default AGENTVM_RELEASES)")
	return command
}

func currentVersions() versions {
	v := versions{
		Version: version, Kernel: kernel.Version, Protocol: guestrpc.Version,
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	for _, a := range platform.Supported() {
		v.Guests = append(v.Guests, guestVersions{a.Platform(), machine.ModuleDigest(a, 1), "sha256:" + supervisor.Digest(a)})
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Revision = s.Value
			}
		}
	}
	return v
}

func (v versions) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "agentvm %s\nkernel      %s\n", v.Version, v.Kernel)
	for _, g := range v.Guests {
		_, more := fmt.Fprintf(w, "machine     %s for %s\nsupervisor  %s\n", g.Machine, g.Platform, g.Supervisor)
		err = errors.Join(err, more)
	}
	_, more := fmt.Fprintf(w, "protocol    %d\nbuilt with  %s for %s\n", v.Protocol, v.Go, v.Platform)
	err = errors.Join(err, more)
	if err == nil && v.Revision != "" {
		_, err = fmt.Fprintf(w, "revision    %s\n", v.Revision)
	}
	if err == nil && v.Newest != "" {
		said := "this is the newest release"
		if newer(v.Newest, v.Version) {
			said = v.Newest + " is newer than this"
		}
		_, err = fmt.Fprintf(w, "newest      %s: %s\n", v.Newest, said)
	}
	return err
}
