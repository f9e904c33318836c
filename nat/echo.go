package nat

import "agentvm/netstack"

// handleEcho takes an echo request. netstack calls it on a goroutine of its own.
func (n *NAT) handleEcho(echo netstack.Echo) {}
