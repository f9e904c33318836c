// Package netstack is one VM's network as its gateway sees it: Ethernet frames on one side, flows on the other. The
// TCP/IP behind it is gVisor's, whose types do not leave this package.
//
//	            ┌───────────────────────── Network ─────────────────────────┐
//	  frames    │ framing ─► capture ─► filter ─► ARP, IPv4, IPv6, RA ─┐    │
//	◄──────────►│                                                      ▼    │
//	 Run(link)  │              TCPRequest, UDPRequest, Echo: flows that the │──► handlers (package nat)
//	            │              guest begins, to any address                 │
//	            │              DialContext: flows to the guest              │◄── port forwards, vm.Dial
//	            │              Listen, ListenPacket: the gateway's services │◄── dhcp, dns
//	            └───────────────────────────────────────────────────────────┘
//
// A flow that the guest begins is not answered before its handler has decided: no SYN-ACK before [TCPRequest.Accept],
// no echo reply before [Echo.Reply].
//
// All methods may be called from any goroutine, except that handlers are set before [Network.Run]. Bytes of one flow
// keep their order; nothing is promised between flows. New opens no descriptor; its goroutines are gVisor's (one for
// each processor) and [Network.Close] waits for them. An idle network has no timer running but the one of the router
// advertisements (minutes apart).
//
// It decides nothing: whom the guest may reach, how many flows there may be and for how long is package nat's and
// egress's business. It opens no socket of the host.
package netstack
