// Package commands runs the scripts of the command line, except for those about VMs with names.
package commands

import (
	"testing"

	"agentvm/integration/script"
)

func TestMain(m *testing.M) { script.Main(m) }

func TestScript(t *testing.T) { script.Run(t) }
