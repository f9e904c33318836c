package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/egress"
	"agentvm/internal/settings"
	"agentvm/vm"
)

// policyFlags say what a VM may reach.
type policyFlags struct {
	mode      string
	rules     map[string]*[]string // by the names of egress.Policy.Lists
	file      string
	hostPorts []string
}

func (f *policyFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.mode, "net", "", "what the VM may reach, a `MODE`: public (every public address), allowlist (what --allow names), none, or open (private networks too) (default public, with --allow: allowlist)")
	f.rules = make(map[string]*[]string)
	for _, s := range settings.Rules() {
		f.rules[s.Flag] = flags.StringArray(s.Flag, nil, s.Usage)
	}
	flags.StringVar(&f.file, "policy", "", "read mode and rules from a TOML `FILE`; "+settings.RuleFlags()+" add to it, --net replaces its mode")
	flags.StringArrayVar(&f.hostPorts, "host-port", nil, "open this `PORT` of the host's loopback to the VM, at "+egress.HostName+" (may be repeated)")
}

// set says whether any of the flags is given.
func (f *policyFlags) set() bool {
	rules := 0
	for _, texts := range f.rules {
		rules += len(*texts)
	}
	return f.mode != "" || f.file != "" || rules+len(f.hostPorts) > 0
}

// allowing are the flags of rules that let pass.
func (f *policyFlags) allowing() (flags []string) {
	for _, list := range new(egress.Policy).Lists() {
		if !list.Denies {
			flags = append(flags, list.Name)
		}
	}
	return flags
}

// apply puts what the flags say into a network's configuration.
func (f *policyFlags) apply(n *vm.Network) error {
	var err error
	if f.file != "" {
		if n.Policy, err = readPolicy(f.file); err != nil {
			return err
		}
	}
	switch mode := egress.Mode(f.mode); mode {
	case "":
	case egress.Public, egress.Allowlist, egress.None, egress.Open:
		n.Policy.Mode = mode
	default:
		return fmt.Errorf("--net %q: want public, allowlist, none or open; --network NAME joins a network of VMs", f.mode)
	}
	for _, list := range n.Policy.Lists() {
		if texts := f.rules[list.Name]; texts != nil {
			if *list.Rules, err = appendRules(*list.Rules, "--"+list.Name, *texts); err != nil {
				return err
			}
		}
	}
	for _, text := range f.hostPorts {
		port, err := parsePort(text)
		if err != nil {
			return fmt.Errorf("--host-port %q: want a port from 1 to 65535", text)
		}
		n.HostPorts = append(n.HostPorts, port)
	}
	return nil
}

// readPolicy reads a policy file.
func readPolicy(path string) (egress.Policy, error) {
	file, err := openHostFile(path, os.O_RDONLY)
	if err != nil {
		return egress.Policy{}, fmt.Errorf("policy file: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxPolicyBytes+1))
	if err != nil {
		return egress.Policy{}, fmt.Errorf("policy file: %w", err)
	}
	if len(text) > maxPolicyBytes {
		return egress.Policy{}, fmt.Errorf("policy file: %s has more than %d bytes: is it one?", path, maxPolicyBytes)
	}
	return egress.ParsePolicy(path, text)
}

// maxPolicyBytes is far more than the longest policy, which has 4096 rules, takes.
const maxPolicyBytes = 4 << 20

func appendRules(rules []egress.Rule, flag string, texts []string) ([]egress.Rule, error) {
	for _, text := range texts {
		rule, err := egress.ParseRule(text)
		if err != nil {
			return nil, fmt.Errorf("%s %w", flag, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

func parsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err == nil && port == 0 {
		err = errors.New("port 0")
	}
	return uint16(port), err
}

// networkFlags are the flags of a VM's network.
type networkFlags struct {
	policyFlags
	flags *pflag.FlagSet // those of the table of settings are read from here
	quiet bool

	policyFile string // the project file that gave the policy, or a part of it; "": the flags did
}

func (f *networkFlags) register(command *cobra.Command) {
	flags := command.Flags()
	f.registerKept(flags)
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "do not say afterwards on standard error what was denied")
}

// registerKept registers the flags that a named VM can have as well.
func (f *networkFlags) registerKept(flags *pflag.FlagSet) {
	f.flags = flags
	f.policyFlags.register(flags)
	registerSettings(flags, func(s settings.Setting) bool { return s.Part == settings.OfAccess })
	registerSettings(flags, func(s settings.Setting) bool { return s.Part == settings.OfNetwork })
}

// text is what a flag of the table was given; "" for a command that has none of them.
func (f *networkFlags) text(flag string) string {
	if f.flags == nil {
		return ""
	}
	text, _ := f.flags.GetString(flag)
	return text
}

// change sets in c what is named by each flag for which changed holds, and leaves the rest as it is. One flag of the policy replaces the
// whole policy. It opens no files but the policy's.
func (f *networkFlags) change(c settings.Config, changed func(flag string) bool) (err error) {
	none := withoutNetwork(f.flags)
	if none {
		if err := f.contradiction(); err != nil {
			return err
		}
	}
	if changed("no-network") || none {
		c.Network = vm.Network{}
		for _, file := range []*string{c.CaptureFile, c.NetworkLog} {
			if file != nil {
				*file = ""
			}
		}
	}
	if flag := f.given(changed); c.Network.Disabled && !none && flag != "" {
		return fmt.Errorf("--%s: the VM was made without a network card, so that no flag of the network has a meaning: --no-network=false gives it one", flag)
	}
	if f.set() {
		c.Network.Policy, c.Network.HostPorts = egress.Policy{}, nil
		if err := f.apply(&c.Network); err != nil {
			return err
		}
	}
	return changeSettings(c, f.flags, changed)
}

// given names a flag of the network for which changed holds, "" when there is none.
func (f *networkFlags) given(changed func(flag string) bool) string {
	for _, s := range settings.All() {
		if s.Part == settings.OfNetwork && f.flags.Lookup(s.Flag) != nil && changed(s.Flag) && s.Key != "network.disabled" {
			return s.Flag
		}
	}
	if f.file != "" {
		return "policy"
	}
	return ""
}

// withoutNetwork reports whether the user wants a VM without a network card.
func withoutNetwork(flags *pflag.FlagSet) bool {
	off, _ := flags.GetBool("no-network")
	networks, _ := flags.GetStringArray("network")
	return off || slices.Contains(networks, settings.NoNetwork)
}

// contradiction returns an error when a flag is given that makes no sense without a network.
func (f *networkFlags) contradiction() error {
	given := f.set()
	for _, s := range settings.All() {
		flag := f.flags.Lookup(s.Flag)
		if s.Part != settings.OfNetwork || flag == nil || s.Kind == settings.Switch {
			continue
		}
		texts := flagTexts(flag)
		if s.Kind.IsList() {
			given = given || slices.ContainsFunc(texts, func(text string) bool { return s.Flag != "network" || text != settings.NoNetwork })
		} else {
			given = given || texts[0] != flag.DefValue
		}
	}
	if given {
		return errors.New("--no-network (or --network none) leaves out the network card, so that no other flag of the network has a meaning (--net none keeps the card)")
	}
	return nil
}
