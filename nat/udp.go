package nat

import "agentvm/netstack"

// handleUDP takes a session that the guest wants. netstack calls it where it must not block.
func (n *NAT) handleUDP(request *netstack.UDPRequest) bool { return false }
