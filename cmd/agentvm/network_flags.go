package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/egress"
	"agentvm/internal/settings"
	"agentvm/nat"
	"agentvm/vm"
)

// policyFlags say what a VM may reach.
type policyFlags struct {
	mode        string
	allow, deny []string
	allowSNI    []string
	file        string
	hostPorts   []string
}

func (f *policyFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.mode, "net", "", "what the VM may reach, a `MODE`: public (every public address), allowlist (what --allow names), none, or open (private networks too) (default public, with --allow: allowlist)")
	flags.StringArrayVar(&f.allow, "allow", nil, "let the VM reach what a `RULE` names: HOST[:PORTS[/tcp|udp|icmp]], where HOST is a name, *.suffix, an address or a network, as pypi.org:443 (may be repeated)")
	flags.StringArrayVar(&f.allowSNI, "allow-sni", nil, "let the VM reach the names of a `RULE` by TLS or HTTP only, and check in each connection that it names one of them, so that other servers at the same addresses stay closed (may be repeated)")
	flags.StringArrayVar(&f.deny, "deny", nil, "never let it reach what a `RULE` names, whatever is allowed (may be repeated)")
	flags.StringVar(&f.file, "policy", "", "read mode and rules from a TOML `FILE`; --allow, --allow-sni and --deny add to it, --net replaces its mode")
	flags.StringArrayVar(&f.hostPorts, "host-port", nil, "open this `PORT` of the host's loopback to the VM, at "+egress.HostName+" (may be repeated)")
}

// set says whether any of the flags is given.
func (f *policyFlags) set() bool {
	return f.mode != "" || f.file != "" || len(f.allow)+len(f.allowSNI)+len(f.deny)+len(f.hostPorts) > 0
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
	if n.Policy.Allow, err = appendRules(n.Policy.Allow, "--allow", f.allow); err != nil {
		return err
	}
	if n.Policy.AllowSNI, err = appendRules(n.Policy.AllowSNI, "--allow-sni", f.allowSNI); err != nil {
		return err
	}
	if n.Policy.Deny, err = appendRules(n.Policy.Deny, "--deny", f.deny); err != nil {
		return err
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
	noNetwork          bool
	publish, resolvers []string
	search, hosts      []string
	networks           []string
	proxy              string
	capture, log       string
	mtu                int
	noIPv6             bool
	send, receive      string
	quiet              bool

	policyFile string // the project file that gave the policy, or a part of it; "": the flags did
}

func (f *networkFlags) register(command *cobra.Command) {
	flags := command.Flags()
	f.registerKept(flags)
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "do not say afterwards on standard error what was denied")
}

// registerKept registers the flags that a named VM can have as well.
func (f *networkFlags) registerKept(flags *pflag.FlagSet) {
	f.policyFlags.register(flags)
	registerSettings(flags, "access.listen-allow", "access.listen-deny", "access.connect-allow", "access.connect-deny", "access.loopback-exempt-ports")
	flags.StringArrayVarP(&f.publish, "publish", "p", nil, "lead a port of the host into the VM, as `PORT:GUESTPORT` or ADDRESS:PORT:GUESTPORT, with /udp for UDP, or ranges, as 8000-8009:9000-9009; on 127.0.0.1 by default; PORT:localhost:GUESTPORT leads to a server that listens at 127.0.0.1 of the VM only (may be repeated)")
	flags.StringArrayVar(&f.resolvers, "dns", nil, "ask the DNS server `IP[:PORT]` instead of the host's (may be repeated)")
	flags.StringArrayVar(&f.search, "dns-search", nil, "complete short names with this `DOMAIN` (may be repeated)")
	flags.StringArrayVar(&f.hosts, "add-host", nil, "give a name an address in the VM, as `NAME:IP` or NAME:host-gateway, where --host-port opens ports; this opens nothing (may be repeated)")
	flags.StringArrayVar(&f.networks, "network", nil, "join the network of VMs of this `NAME`, in which VMs reach each other by name; see agentvm network; none: as --no-network (may be repeated)")
	flags.StringVar(&f.proxy, "proxy", "", "make the VM's TCP connections through the proxy `URL` of the host, http://, https:// or socks5://HOST:PORT, or that in env:VARIABLE or file:PATH, where a password belongs; UDP does not pass")
	flags.StringVar(&f.capture, "pcap", "", "write every Ethernet frame of the VM to a `FILE` for Wireshark")
	flags.StringVar(&f.log, "net-log", "", "append every connection, DNS query and denial to a `FILE`, a line of JSON each (see agentvm net log)")
	registerSettings(flags, "network.subnet", "network.ip", "network.mac")
	flags.IntVar(&f.mtu, "mtu", 0, "largest IP packet in `BYTES` (default 1500)")
	flags.BoolVar(&f.noIPv6, "no-ipv6", false, "give the VM IPv4 only")
	flags.StringVar(&f.send, "send-limit", "", "bytes a second (`RATE`) that the VM may send, as 500K or 10M (default none)")
	flags.StringVar(&f.receive, "receive-limit", "", "bytes a second (`RATE`) that the VM may receive, as 500K or 10M (default none)")
	flags.BoolVar(&f.noNetwork, "no-network", false, "give the VM no network card at all")
}

// change sets in n what is named by each flag for which changed holds. One flag of the policy replaces the whole policy. It opens no
// files but the policy's.
func (f *networkFlags) change(n *vm.Network, changed func(flag string) bool) (err error) {
	networks, none, err := f.joined()
	if err != nil {
		return err
	}
	if none {
		if err := f.contradiction(*n, networks); err != nil {
			return err
		}
	}
	if changed("no-network") || none && changed("network") {
		*n = vm.Network{Disabled: none, Subnet: n.Subnet, Address: n.Address, MAC: n.MAC} // those of the table of settings
	}
	if f.set() {
		n.Policy, n.HostPorts = egress.Policy{}, nil
		if err := f.apply(n); err != nil {
			return err
		}
	}
	if changed("publish") {
		n.Forwards = nil
		for _, text := range f.publish {
			list, err := nat.ParseForwards(text)
			if err != nil {
				return fmt.Errorf("--publish: %w", err)
			}
			n.Forwards = append(n.Forwards, list...)
		}
	}
	if changed("dns") {
		n.Resolvers = nil
		for _, text := range f.resolvers {
			server, err := parseResolver(text)
			if err != nil {
				return err
			}
			n.Resolvers = append(n.Resolvers, server)
		}
	}
	if changed("dns-search") {
		n.Search = f.search
	}
	if changed("add-host") {
		n.Hosts = nil
		for _, text := range f.hosts {
			host, err := egress.ParseHost(text)
			if err != nil {
				return fmt.Errorf("--add-host %w", err)
			}
			n.Hosts = append(n.Hosts, host)
		}
	}
	if changed("network") {
		n.Networks = networks
	}
	if changed("proxy") {
		if n.Proxy, err = proxyFlag(f.proxy); err != nil {
			return err
		}
	}
	if changed("mtu") {
		n.MTU = f.mtu
	}
	if changed("no-ipv6") {
		n.DisableIPv6 = f.noIPv6
	}
	if changed("send-limit") {
		if n.SendLimit, err = parseRate("--send-limit", f.send); err != nil {
			return err
		}
	}
	if changed("receive-limit") {
		n.ReceiveLimit, err = parseRate("--receive-limit", f.receive)
	}
	return err
}

// noNetworkName is what --network takes for no network, as docker run does.
const noNetworkName = "none"

// joined returns the networks of VMs to join, and whether the VM is to have no network at all, as --network none says, too.
func (f *networkFlags) joined() (networks []string, none bool, err error) {
	none = f.noNetwork
	for _, name := range f.networks {
		switch name {
		case noNetworkName:
			none = true
		case "host":
			return nil, false, errors.New("--network host: a VM has a network of its own: --host-port PORT opens a port of this host's loopback to it, -p PORT:GUESTPORT leads from the host to the VM, --net open lets it reach private networks")
		case "bridge", "default":
			return nil, false, fmt.Errorf("--network %s: each VM has a network that reaches public addresses: leave the flag out; --network NAME joins a network of agentvm network create", name)
		default:
			networks = append(networks, name)
		}
	}
	return networks, none, nil
}

// contradiction returns an error when a flag is given that makes no sense without a network.
func (f *networkFlags) contradiction(n vm.Network, networks []string) error {
	if f.set() || n.Subnet.IsValid() || n.Address.IsValid() || n.MAC != "" || len(f.publish)+len(f.resolvers)+len(f.search)+len(f.hosts)+len(networks) > 0 || f.proxy != "" || f.capture != "" || f.log != "" || f.mtu != 0 || f.send != "" || f.receive != "" {
		return errors.New("--no-network (or --network none) leaves out the network card, so that no other flag of the network has a meaning (--net none keeps the card)")
	}
	return nil
}

// parseResolver reads IP[:PORT], with an IPv6 address in brackets when there is a port.
func parseResolver(text string) (netip.AddrPort, error) {
	if server, err := netip.ParseAddrPort(text); err == nil && server.Port() != 0 {
		return server, nil
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("--dns %q: want an address as 9.9.9.9, 127.0.0.1:5353 or [2620:fe::fe]:53", text)
	}
	return netip.AddrPortFrom(address, 53), nil
}

// parseRate reads bytes a second; nothing is 0.
func parseRate(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := settings.ParseSize(strings.TrimSuffix(text, "/s"), 0)
	if err != nil || n == 0 || n > 1<<40 {
		return 0, fmt.Errorf("%s %q: want bytes a second as 500K or 10M", flag, text)
	}
	return int64(n), nil
}

// proxyFlag reads --proxy. Other users see command lines, so that a password is not for them.
func proxyFlag(text string) (string, error) {
	if path, file := strings.CutPrefix(text, "file:"); file && path != "" {
		path, err := filepath.Abs(path) // the daemon has another working directory
		return "file:" + path, err
	}
	if u, err := url.Parse(text); err == nil && u.User != nil {
		if _, password := u.User.Password(); password {
			return "", errors.New("--proxy: a password does not belong on a command line, where other users see it: put the URL into a file or a variable, and give --proxy file:PATH or env:VARIABLE")
		}
	}
	return text, nil
}
