package nat

import (
	"net"

	"agentvm/netstack"
)

// handleTCP takes a connection that the guest wants. netstack calls it on a goroutine of its own.
func (n *NAT) handleTCP(request *netstack.TCPRequest) { request.Reset() }

// spliceTCP moves bytes both ways until the flow has ended, and closes both connections and the flow, which is
// established. Port forwards use it too.
func (n *NAT) spliceTCP(f *flow, guest *netstack.Conn, host net.Conn) {}
