package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"agentvm/vm"
)

// accessFlags say who may reach what listens in a VM, and which ports its programs may connect to.
type accessFlags struct {
	listenAllow, listenDeny, connectAllow, connectDeny, exempt []string
}

func (f *accessFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.listenAllow, "listen-allow", nil, "let programs of the VM listen only at the ports of a `RANGE`, as 8080 or 3000-3999 (may be repeated)")
	flags.StringArrayVar(&f.listenDeny, "listen-deny", nil, "never let them listen at the ports of a `RANGE`, whatever is allowed (may be repeated)")
	flags.StringArrayVar(&f.connectAllow, "connect-allow", nil, "let connections lead only to the ports of a `RANGE`: those from the VM to wherever the network policy lets them, and those from the host to the VM (may be repeated)")
	flags.StringArrayVar(&f.connectDeny, "connect-deny", nil, "never let connections lead to the ports of a `RANGE`, whatever is allowed (may be repeated)")
	flags.StringArrayVar(&f.exempt, "loopback-exempt", nil, "let others than this VM's owner reach a `PORT` of the VM's loopback; -p does that for its port (may be repeated)")
}

// change sets in a what is named by each flag for which changed holds, and leaves the rest as it is.
func (f *accessFlags) change(a *vm.Access, changed func(flag string) bool) error {
	for _, flag := range []struct {
		name  string
		given []string
		to    *[]vm.PortRange
	}{
		{"listen-allow", f.listenAllow, &a.Listen.Allow}, {"listen-deny", f.listenDeny, &a.Listen.Deny},
		{"connect-allow", f.connectAllow, &a.Connect.Allow}, {"connect-deny", f.connectDeny, &a.Connect.Deny},
	} {
		if !changed(flag.name) {
			continue
		}
		*flag.to = nil
		for _, text := range flag.given {
			var r vm.PortRange
			if err := r.UnmarshalText([]byte(text)); err != nil {
				return fmt.Errorf("--%s: %w", flag.name, err)
			}
			*flag.to = append(*flag.to, r)
		}
	}
	if changed("loopback-exempt") {
		a.LoopbackExemptPorts = nil
		for _, text := range f.exempt {
			port, err := parsePort(text)
			if err != nil {
				return fmt.Errorf("--loopback-exempt %q: want a port from 1 to 65535", text)
			}
			a.LoopbackExemptPorts = append(a.LoopbackExemptPorts, port)
		}
	}
	return a.Check()
}

// always is for the flags of a VM that has no configuration yet: each counts, also one that is not given.
func always(string) bool { return true }
