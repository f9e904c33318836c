package dhcp_test

import (
	"fmt"
	"net"
	"net/netip"

	"agentvm/dhcp"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// A server for one guest. Serve does the same for what a socket receives.
func Example() {
	guest := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	server, err := dhcp.New(dhcp.Config{
		Server:   netip.MustParseAddr("192.168.127.1"),
		Guest:    netip.MustParseAddr("192.168.127.3"),
		GuestMAC: guest,
		Subnet:   netip.MustParsePrefix("192.168.127.0/24"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	discover, err := dhcpv4.NewDiscovery(guest)
	if err != nil {
		fmt.Println(err)
		return
	}
	reply, to, _ := server.Reply(discover.ToBytes())
	offer, err := dhcpv4.FromBytes(reply)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(offer.MessageType(), offer.YourIPAddr, "from", offer.ServerIdentifier(), "by", to)
	// Output: OFFER 192.168.127.3 from 192.168.127.1 by 255.255.255.255:68
}
