package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
)

const gatewayLong = `Serves E2B's and this program's HTTP API in front of a Kubernetes cluster whose pods are the sandboxes. It is a program of its own, agentvm-gateway,
because a client of Kubernetes is half as large as all of this one: this command executes it with the same arguments. It is found beside this program or in the PATH; its own help names
its flags.`

func (c *cli) gatewayCommand() *cobra.Command {
	return &cobra.Command{
		Use: "gateway [flags]", Short: "Serve sandboxes of a Kubernetes cluster", Long: gatewayLong,
		DisableFlagParsing: true, // they are the other program's
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := gatewayProgram()
			if err != nil && (slices.Contains(args, "--help") || slices.Contains(args, "-h")) {
				return cmd.Help()
			}
			if err != nil {
				return err
			}
			return executeInstead(path, append([]string{path}, args...))
		},
	}
}

// gatewayProgram finds the program: beside this one, or in the PATH.
func gatewayProgram() (string, error) {
	const name = "agentvm-gateway"
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), name+filepath.Ext(self))
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in the PATH (%w): go -C cmd/agentvm-gateway build -o DIRECTORY makes it", name, errors.Unwrap(err))
	}
	return path, nil
}
