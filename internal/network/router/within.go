package router

import (
	"errors"
	"fmt"
	"slices"

	"agentvm/egress"
)

// Within returns nil when a VM with the network n reaches nothing that one with most does not: by the policy (egress.Policy.Within), by ports of the
// host, by networks of VMs, and by whoever says what addresses names have, which rules for the names then open.
func (n Network) Within(most Network) error {
	if n.Disabled {
		return nil
	}
	if most.Disabled {
		return errors.New("a network is more than none")
	}
	if err := n.Policy.Within(most.Policy); err != nil {
		return err
	}
	for _, port := range n.HostPorts {
		if !slices.Contains(most.HostPorts, port) {
			return fmt.Errorf("port %d of the host is not to be opened", port)
		}
	}
	for _, name := range n.Networks {
		if !slices.Contains(most.Networks, name) {
			return fmt.Errorf("the network of VMs %s is not to be joined", name)
		}
	}
	for _, host := range n.Hosts {
		if !slices.Contains(most.Hosts, host) {
			return fmt.Errorf("the address of %s is not to be given", host.Name)
		}
	}
	if !slices.Equal(n.Resolvers, most.Resolvers) {
		return errors.New("the DNS servers are not to be chosen")
	}
	if n.Proxy != most.Proxy {
		return errors.New("the proxy is not to be chosen")
	}
	return nil
}

// Limited returns n with what most says about everything that a VM reaches, and without ports of this host that lead into it. What the
// guest knows of its card stays.
func (n Network) Limited(most Network) Network {
	if most.Disabled {
		most = Network{Policy: egress.Policy{Mode: egress.None}}
	}
	n.Policy, n.HostPorts, n.Networks, n.Hosts, n.Resolvers, n.Search, n.Proxy = most.Policy, most.HostPorts, most.Networks, most.Hosts, most.Resolvers, most.Search, most.Proxy
	n.Forwards = nil
	return n
}
