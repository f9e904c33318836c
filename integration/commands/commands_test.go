// Package commands has scripts of the command line, but for those of VMs with names.
package commands

import (
	"testing"

	"agentvm/integration/script"
)

func TestMain(m *testing.M) { script.Main(m) }

func TestScript(t *testing.T) { script.Run(t) }
