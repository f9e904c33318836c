package vm

import "testing"

func TestColdBootByEnvironment(t *testing.T) {
	for value, want := range map[string]bool{"": false, "nobase": true, "timing,nobase": true, "timing, nobase": true, "nobases": false} {
		t.Setenv("AGENTVM_DEBUG", value)
		c, err := Config{}.withDefaults()
		if err != nil || c.ColdBoot != want || c.usesBase() == want {
			t.Errorf("AGENTVM_DEBUG=%q: ColdBoot %v, %v", value, c.ColdBoot, err)
		}
	}
	for name, c := range map[string]Config{
		"a disk of one's own": {Disk: "path", KernelArguments: "agentvm.upper=tmpfs"}, "kernel": {Kernel: []byte{1}}, "cold": {ColdBoot: true},
	} {
		if c.usesBase() {
			t.Errorf("%s: there would be a base", name)
		}
	}
}
