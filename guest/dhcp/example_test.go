package dhcp_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"agentvm/guest/dhcp"
)

// cable is a link to a server that offers 10.0.0.2 to everybody.
type cable struct{ replies [][]byte }

func (c *cable) Send(b []byte, _ netip.AddrPort) error {
	request, err := dhcpv4.FromBytes(b)
	if err != nil {
		return err
	}
	kind := dhcpv4.MessageTypeOffer
	if request.MessageType() == dhcpv4.MessageTypeRequest {
		kind = dhcpv4.MessageTypeAck
	}
	reply, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(net.IPv4(10, 0, 0, 2)),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 0, 0, 1))), dhcpv4.WithLeaseTime(3600))
	if err != nil {
		return err
	}
	c.replies = append(c.replies, reply.ToBytes())
	return nil
}

func (c *cable) Receive(b []byte, until time.Time) (int, error) {
	if len(c.replies) == 0 {
		time.Sleep(time.Until(until))
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(b, c.replies[0])
	c.replies = c.replies[1:]
	return n, nil
}

// On Linux, Open gives a Link to a real network card.
func Example() {
	client := dhcp.Client{Link: &cable{}, MAC: [6]byte{2, 0, 0, 0, 0, 1}, Nonce: rand.Uint32}
	lease, err := client.Acquire(3 * time.Second)
	fmt.Println(lease.Address, lease.Renew, err)
	// Output:
	// 10.0.0.2/24 30m0s <nil>
}
