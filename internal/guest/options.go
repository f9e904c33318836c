//go:build linux

package guest

import (
	"fmt"
	"os"
	"strings"
)

// options are the agentvm.key=value words of the kernel command line.
type options struct {
	root     string // agentvm.root: device of the EROFS image; default /dev/vda
	upper    string // agentvm.upper: writable ext4 device, "tmpfs", or "late", see deferredRoot; default /dev/vdb when there is one, else tmpfs
	hostname string // agentvm.hostname; default agentvm

	standalone bool // agentvm.standalone: one command and no RPC, see standalone
}

func readOptions(path string) (options, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return options{}, err
	}
	return parseOptions(string(b))
}

// parseOptions reads a command line. It ignores words without the prefix agentvm., which are the kernel's. An unknown word with
// it is an error, because it was meant to have an effect.
func parseOptions(line string) (options, error) {
	o := options{root: "/dev/vda", hostname: "agentvm"}
	for word := range strings.FieldsSeq(line) {
		word, ours := strings.CutPrefix(word, "agentvm.")
		if !ours {
			continue
		}
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "root":
			o.root = value
		case "upper":
			o.upper = value
		case "hostname":
			o.hostname = value
		case "standalone":
			o.standalone = true
		default:
			return options{}, fmt.Errorf("unknown option agentvm.%s on the kernel command line", key)
		}
	}
	return o, nil
}
