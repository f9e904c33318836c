package vm_test

import (
	"strings"
	"testing"

	"agentvm/vm"
)

// TestModuleShellOfAGuest: the shell of a guest, with a terminal of Linux as container2wasm's guests have, does as those of hosts.
func TestModuleShellOfAGuest(t *testing.T) {
	v := sharedVM(t)
	long := strings.Repeat("ä'\\ \t$x\"%s\n", 2000)
	input := strings.Repeat("0123456789 line\n", 2000) + "end"
	tests := []struct {
		command vm.Command
		want    string
		code    int
	}{
		{vm.Command{Line: "echo a; printf 'b\\r\\n\\n' >&2; exit 3"}, "a\nb\r\n\n", 3},
		{vm.Command{Args: []string{"printf", "%s", long}}, long, 0},
		{vm.Command{Line: "pwd", Dir: "/tmp"}, "/tmp\n", 0},
		{vm.Command{Line: "cat", Stdin: strings.NewReader(input)}, input, 0},
		{vm.Command{Args: []string{"/nowhere"}, Stdin: strings.NewReader("")}, "not found", 127},
	}
	for _, test := range tests {
		r, err := vm.RunAsModule(limited(t), v, test.command)
		if err != nil {
			t.Fatalf("%q: %v", test.command.Line, err)
		}
		if out := string(r.Stdout); out != test.want && (test.code != 127 || !strings.Contains(out, test.want)) || r.ExitCode != test.code {
			t.Errorf("%q %.60q: %.200q of %d bytes, %d, want %.200q, %d", test.command.Line, test.command.Args, out, len(out), r.ExitCode, test.want, test.code)
		}
	}
}
