package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"agentvm/client"
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

// accessFlag is one of the flags with ranges: its name, what was given, and the place in the configuration that it sets.
type accessFlag struct {
	name  string
	given []string
	to    *[]vm.PortRange
}

// flags returns the flags whose values are ranges.
func (f *accessFlags) flags(a *client.Access) []accessFlag {
	return []accessFlag{
		{"listen-allow", f.listenAllow, &a.ListenAllow}, {"listen-deny", f.listenDeny, &a.ListenDeny},
		{"connect-allow", f.connectAllow, &a.ConnectAllow}, {"connect-deny", f.connectDeny, &a.ConnectDeny},
	}
}

// change sets in a what is named by each flag for which changed holds, and leaves the rest as it is.
func (f *accessFlags) change(a *client.Access, changed func(flag string) bool) error {
	for _, flag := range f.flags(a) {
		if !changed(flag.name) {
			continue
		}
		ranges, err := portRanges("--"+flag.name, flag.given)
		if err != nil {
			return err
		}
		*flag.to = ranges
	}
	if !changed("loopback-exempt") {
		return nil
	}
	a.LoopbackExemptPorts = nil
	for _, text := range f.exempt {
		port, err := parsePort(text)
		if err != nil {
			return fmt.Errorf("--loopback-exempt %q: want a port from 1 to 65535", text)
		}
		a.LoopbackExemptPorts = append(a.LoopbackExemptPorts, port)
	}
	return nil
}

// apply puts what the flags say into a VM's configuration.
func (f *accessFlags) apply(config *vm.Config) error {
	var a client.Access
	if err := f.change(&a, func(string) bool { return true }); err != nil {
		return err
	}
	config.Access = a.VM()
	return config.Access.Check()
}

func portRanges(what string, texts []string) (list []vm.PortRange, err error) {
	for _, text := range texts {
		var r vm.PortRange
		if err := r.UnmarshalText([]byte(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		list = append(list, r)
	}
	return list, nil
}

// changeAccess changes what the flags name, and takes the lifetime of previews from the project file.
func (f *startFlags) changeAccess(config *client.Config) error {
	if err := f.access.change(&config.Access, f.changed); err != nil {
		return err
	}
	if f.project != nil {
		seconds, _ := strconv.Atoi(f.project.Value("preview.max-expires-in-seconds")) // checked; none: 0, the default
		config.PreviewMaxLifetime = client.Duration(seconds) * client.Duration(time.Second)
	}
	return config.Access.VM().Check()
}
