package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func (c *cli) systemCommand() *cobra.Command {
	command := &cobra.Command{Use: "system", Short: "Show what agentvm keeps on this host"}
	command.AddCommand(c.systemDiskCommand())
	return command
}

// diskUsage is a line of system df: what things of one kind take on this host.
type diskUsage struct {
	Kind        string `json:"kind"`
	Count       int    `json:"count"`
	Bytes       int64  `json:"bytes"`
	Reclaimable int64  `json:"reclaimable"` // that prune would free
}

func (c *cli) systemDiskCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "df", Short: "Show how much space images take", Args: cobra.NoArgs,
		Long: `Shows how much space each kind of thing takes in the store, and how much of that nothing needs any more: agentvm image prune removes it.`,
		RunE: func(*cobra.Command, []string) error {
			usage, err := c.imagesUsage()
			if err != nil {
				return err
			}
			list := []diskUsage{usage}
			if asJSON {
				return printJSON(c.stdout, list)
			}
			table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "KIND\tCOUNT\tSIZE\tRECLAIMABLE")
			for _, u := range list {
				fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", u.Kind, u.Count, bytesText(u.Bytes), bytesText(u.Reclaimable))
			}
			return table.Flush()
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

func (c *cli) imagesUsage() (diskUsage, error) {
	store, err := c.store(nil)
	if err != nil {
		return diskUsage{}, err
	}
	_, total, err := store.Usage()
	return diskUsage{"images", total.Images, total.Bytes, total.Reclaimable}, err
}
