package machine

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// configMembers names the members of struct machine_config in the order of abiConfig's fields.
var configMembers = []string{
	"ram_size", "console_in_fd", "console_out_fd", "control_fd", "bulk_fd", "net_fd", "net_flags", "net_mac", "net_mtu",
	"disk_fd", "disk_flags", "share_fd", "share_tag", "clock_mode", "hart_flags", "harts", "reserved", "realtime_ns",
	"generation",
}

// Both languages must put each member at the same place: what encoding/binary writes has no padding.
func TestConfigIsLaidOutAsInC(t *testing.T) {
	fields := reflect.VisibleFields(reflect.TypeFor[abiConfig]())
	if len(fields) != len(configMembers) {
		t.Fatalf("abiConfig has %d fields, the list of C members %d", len(fields), len(configMembers))
	}
	var want strings.Builder
	offset := 0
	for i, f := range fields {
		fmt.Fprintf(&want, "%s %d\n", configMembers[i], offset)
		offset += binary.Size(reflect.Zero(f.Type).Interface())
	}
	fmt.Fprintf(&want, "size %d\n", offset)
	if diff := cmp.Diff(want.String(), offsetsInC(t)); diff != "" {
		t.Errorf("abiConfig and struct machine_config differ (-Go +C):\n%s", diff)
	}
}

// offsetsInC compiles config.h for the host: its members have the same sizes and alignment everywhere.
func offsetsInC(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("gcc is missing: apt-get install gcc")
		}
		t.Skip("gcc is missing: apt-get install gcc")
	}
	var source strings.Builder
	source.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"config.h\"\nint main(void) {\n")
	for _, name := range configMembers {
		fmt.Fprintf(&source, "printf(\"%s %%zu\\n\", offsetof(struct machine_config, %s));\n", name, name)
	}
	source.WriteString("printf(\"size %zu\\n\", sizeof(struct machine_config));\n}\n")
	program := filepath.Join(t.TempDir(), "offsets")
	compile := exec.Command(gcc, "-I", "src/common", "-I", "src/riscv64", "-x", "c", "-o", program, "-")
	compile.Stdin = strings.NewReader(source.String())
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
