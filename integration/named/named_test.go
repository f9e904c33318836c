// Package named has scripts of the command line about VMs with names.
package named

import (
	"os"
	"os/exec"
	"testing"

	"agentvm/integration/script"
)

func TestMain(m *testing.M) { script.Main(m) }

func TestScript(t *testing.T) { script.Run(t) }

// TestSSHIsThere: without ssh, the script named_ssh is skipped, which CI must not.
func TestSSHIsThere(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil && os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
}
