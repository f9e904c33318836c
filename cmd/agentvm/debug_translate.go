package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/internal/machine"
)

const translateLong = `Prints the instructions of a program for riscv64 or arm64 beside the native code that a machine would make of them. After each
operand in memory it says why the verifier accepts it: base and index register, and the index's maximum. The bases
of amd64 are memory (r15), the TLB (r12) and the table of entries (r14), those of arm64 memory (x23), the hart (x27) and
an entry (x17). Addresses of the hart and the TLB are examples.`

func (c *cli) translateCommand() *cobra.Command {
	var o machine.ListOptions
	var addresses string
	command := &cobra.Command{
		Use:     "translate [flags] FILE",
		Short:   "Print a program beside its translation to native code",
		Long:    translateLong,
		Example: "  agentvm debug translate --function main prog\n  agentvm debug translate --address 0x10144-0x10200 prog",
		Args:    counted(1, 1),
	}
	flags := command.Flags()
	flags.StringVar(&o.Function, "function", "", "only the function of this symbol")
	flags.StringVar(&addresses, "address", "", "only a range of virtual addresses, such as 0x10144-0x10200")
	flags.StringVar(&o.Arch, "arch", "amd64", "processor of the host: amd64 or arm64")
	return runs(command, func(_ context.Context, args []string) error {
		if o.Function != "" && addresses != "" {
			return errors.New("--function and --address: want one of them")
		}
		if addresses != "" {
			from, to, _ := strings.Cut(addresses, "-")
			var err, second error
			o.From, err = strconv.ParseUint(from, 0, 64)
			o.To, second = strconv.ParseUint(to, 0, 64)
			if err = errors.Join(err, second); err != nil || o.From >= o.To || o.From%2 != 0 {
				return fmt.Errorf("--address %q: want two addresses as 0x10144-0x10200, the first one even", addresses)
			}
		}
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer file.Close()
		out := bufio.NewWriter(c.stdout)
		err = machine.ListTranslation(out, file, o)
		if err = errors.Join(err, out.Flush()); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		return nil
	})
}
