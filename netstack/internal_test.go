package netstack

// FlowCount is how many connections the network knows.
func FlowCount(n *Network) int { return n.flows.size() }

// EndpointCount is how many transport endpoints gVisor has, TIME_WAIT included.
func EndpointCount(n *Network) int {
	return len(n.stack.RegisteredEndpoints()) + len(n.stack.CleanupEndpoints())
}
