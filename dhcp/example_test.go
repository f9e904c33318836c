package dhcp_test

import (
	"fmt"
	"net"
	"net/netip"

	"agentvm/dhcp"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
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
	request := gopacket.NewSerializeBuffer()
	discover := layers.DHCPv4{
		Operation: layers.DHCPOpRequest, HardwareType: layers.LinkTypeEthernet, ClientHWAddr: guest,
		Options: layers.DHCPOptions{layers.NewDHCPOption(layers.DHCPOptMessageType, []byte{byte(layers.DHCPMsgTypeDiscover)})},
	}
	if err := discover.SerializeTo(request, gopacket.SerializeOptions{FixLengths: true}); err != nil {
		fmt.Println(err)
		return
	}
	reply, to, _ := server.Reply(request.Bytes())
	var offer layers.DHCPv4
	if err := offer.DecodeFromBytes(reply, gopacket.NilDecodeFeedback); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(offer.Operation, offer.YourClientIP, "by", to)
	// Output: Reply 192.168.127.3 by 255.255.255.255:68
}
