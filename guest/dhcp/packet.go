// Package dhcp is the client's side of DHCP for IPv4 (RFC 2131), as much as a VM's card needs on a link where one server
// answers: discover, request, renew.
//
// A Client belongs to one goroutine and starts none. It does no I/O but through its Link, and configures nothing: a Lease says
// what is to be configured.
//
// Why not the library that the host's server uses? It brings 130 KB into the supervisor, lz4 and a table of manufacturers among
// them, and 0.35 M guest instructions into each boot before its first call. What a client sends is two forms of one message, and
// what it reads is a list of options. The library is what this package is tested against.
package dhcp

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net/netip"
	"strings"
	"time"
)

// Options (RFC 2132) that are sent or read.
const (
	optionPad        = 0
	optionMask       = 1
	optionRouter     = 3
	optionDNS        = 6
	optionDomain     = 15
	optionMTU        = 26
	optionBroadcast  = 28
	optionAddress    = 50
	optionLease      = 51
	optionType       = 53
	optionServer     = 54
	optionParameters = 55
	optionMaxSize    = 57
	optionRenewal    = 58
	optionRebinding  = 59
	optionRapid      = 80  // RFC 4039
	optionSearch     = 119 // RFC 3397
	optionEnd        = 255
)

// Message types (RFC 2132 section 9.6).
const (
	typeDiscover = 1
	typeOffer    = 2
	typeRequest  = 3
	typeAck      = 5
	typeNak      = 6
)

const (
	fixedSize     = 236 // up to and with the field "file"
	magic         = 0x63825363
	minSize       = 300  // what servers of BOOTP expect (RFC 1542 section 2.1)
	maxSize       = 1472 // the largest reply that an MTU of 1500 carries
	maxList       = 8    // addresses and domains that are kept of a list
	flagBroadcast = 0x8000
)

// message is what this client sends; zero fields are left out.
type message struct {
	kind    byte
	xid     uint32
	mac     [6]byte
	current netip.Addr // ciaddr: the address that is in use
	request netip.Addr // the address that is asked for
	server  netip.Addr // whose offer is taken
}

// encode builds the message (RFC 2131 section 2). Replies are asked for as broadcasts while the card has no address that they
// could be sent to.
func (m message) encode() []byte {
	b := make([]byte, fixedSize, minSize)
	b[0], b[1], b[2] = 1, 1, 6 // BOOTREQUEST, Ethernet, 6 bytes of address
	binary.BigEndian.PutUint32(b[4:], m.xid)
	if m.current.Is4() {
		copy(b[12:], m.current.AsSlice())
	} else {
		binary.BigEndian.PutUint16(b[10:], flagBroadcast)
	}
	copy(b[28:], m.mac[:])
	b = binary.BigEndian.AppendUint32(b, magic)
	b = append(b, optionType, 1, m.kind)
	if m.kind == typeDiscover {
		b = append(b, optionRapid, 0)
	}
	b = appendAddress(b, optionAddress, m.request)
	b = appendAddress(b, optionServer, m.server)
	b = append(b, optionMaxSize, 2, (maxSize+28)>>8, (maxSize+28)&0xff)
	wanted := []byte{optionMask, optionRouter, optionDNS, optionDomain, optionMTU, optionBroadcast, optionLease, optionRenewal, optionRebinding, optionSearch}
	b = append(append(b, optionParameters, byte(len(wanted))), wanted...)
	b = append(b, optionEnd)
	return append(b, make([]byte, max(0, minSize-len(b)))...)
}

func appendAddress(b []byte, option byte, a netip.Addr) []byte {
	if !a.Is4() {
		return b
	}
	return append(append(b, option, 4), a.AsSlice()...)
}

// reply is a server's message.
type reply struct {
	kind    byte
	address netip.Addr // yiaddr
	options map[byte][]byte
}

var (
	errForeign = errors.New("not a reply to this client")
	errDamaged = errors.New("damaged options")
)

// parseReply reads a server's answer to the message of xid and mac. Its options point into b. Options in the fields "file" and
// "sname" (option 52) are not looked for: a server uses them when a message is full.
func parseReply(b []byte, xid uint32, mac [6]byte) (r reply, err error) {
	if len(b) < fixedSize+4 || b[0] != 2 || b[1] != 1 || b[2] != 6 || binary.BigEndian.Uint32(b[4:]) != xid ||
		[6]byte(b[28:34]) != mac || binary.BigEndian.Uint32(b[fixedSize:]) != magic {
		return r, errForeign
	}
	if r.options, err = parseOptions(b[fixedSize+4:]); err != nil {
		return r, err
	}
	kind := r.options[optionType]
	if len(kind) != 1 {
		return r, errDamaged
	}
	r.kind, r.address = kind[0], netip.AddrFrom4([4]byte(b[16:20]))
	return r, nil
}

// parseOptions reads code, length, value up to the end mark. An option that comes again is continued (RFC 3396).
func parseOptions(b []byte) (map[byte][]byte, error) {
	options := make(map[byte][]byte)
	for len(b) > 0 && b[0] != optionEnd {
		if b[0] == optionPad {
			b = b[1:]
			continue
		}
		if len(b) < 2 || len(b) < 2+int(b[1]) {
			return nil, errDamaged
		}
		code, end := b[0], 2+int(b[1]) // as int: a byte would wrap at lengths 254 and 255
		value := b[2:end]
		b = b[end:]
		if before, again := options[code]; again {
			value = append(before[:len(before):len(before)], value...)
		}
		options[code] = value
	}
	return options, nil
}

// lease is what an offer or an acknowledgement grants.
func (r reply) lease() (l Lease, err error) {
	length, ok := r.prefixLength()
	if !ok || !r.address.IsGlobalUnicast() {
		return l, errors.New("the reply has no usable address or no subnet mask")
	}
	l.Address = netip.PrefixFrom(r.address, length)
	if l.Server, ok = r.addressOption(optionServer); !ok {
		return l, errors.New("the reply does not name its server")
	}
	l.Broadcast, _ = r.addressOption(optionBroadcast)
	l.Routers, l.DNS = r.addresses(optionRouter), r.addresses(optionDNS)
	l.Search = r.domains()
	if mtu := r.options[optionMTU]; len(mtu) == 2 {
		l.MTU = int(binary.BigEndian.Uint16(mtu))
	}
	l.times(r)
	return l, nil
}

// prefixLength reads the subnet mask, which must be ones and then zeros.
func (r reply) prefixLength() (length int, ok bool) {
	b := r.options[optionMask]
	if len(b) != 4 {
		return 0, false
	}
	mask := binary.BigEndian.Uint32(b)
	length = bits.LeadingZeros32(^mask)
	return length, length > 0 && mask == ^uint32(0)<<(32-length)
}

// times reads the lease's length and when to renew and rebind it, with the defaults of RFC 2131 section 4.4.5.
func (l *Lease) times(r reply) {
	l.Duration = r.seconds(optionLease, Forever)
	if l.Duration >= Forever {
		l.Renew, l.Rebind = Forever, Forever
		return
	}
	l.Duration = max(l.Duration, shortest)
	l.Renew = min(max(r.seconds(optionRenewal, l.Duration/2), shortest/2), l.Duration)
	l.Rebind = min(max(r.seconds(optionRebinding, l.Duration*7/8), l.Renew), l.Duration)
}

func (r reply) seconds(option byte, otherwise time.Duration) time.Duration {
	b := r.options[option]
	if len(b) != 4 {
		return otherwise
	}
	return time.Duration(binary.BigEndian.Uint32(b)) * time.Second
}

func (r reply) addressOption(option byte) (netip.Addr, bool) {
	list := r.addresses(option)
	if len(list) == 0 {
		return netip.Addr{}, false
	}
	return list[0], true
}

func (r reply) addresses(option byte) (list []netip.Addr) {
	for b := r.options[option]; len(b) >= 4 && len(list) < maxList; b = b[4:] {
		list = append(list, netip.AddrFrom4([4]byte(b)))
	}
	return list
}

// domains are those to search: the search list, or else the domain of the host's own name.
func (r reply) domains() []string {
	if list := parseSearch(r.options[optionSearch]); len(list) > 0 {
		return list
	}
	if domain := strings.TrimRight(string(r.options[optionDomain]), "\x00."); plainName(domain) {
		return []string{domain}
	}
	return nil
}

// parseSearch reads names in the form of DNS with pointers into b itself (RFC 3397 section 2); what is damaged ends the list.
func parseSearch(b []byte) (list []string) {
	for at := 0; at < len(b) && len(list) < maxList; {
		name, next, ok := parseName(b, at)
		if !ok {
			return list
		}
		if plainName(name) {
			list = append(list, name)
		}
		at = next
	}
	return list
}

// parseName reads the name at offset at; next is where what follows it begins. A pointer leads back only.
func parseName(b []byte, at int) (name string, next int, ok bool) {
	var labels []string
	size, limit := 0, len(b)
	for at < limit {
		n := int(b[at])
		switch {
		case n == 0:
			if next == 0 {
				next = at + 1
			}
			return strings.Join(labels, "."), next, true
		case n&0xc0 == 0xc0 && at+1 < limit:
			if next == 0 {
				next = at + 2
			}
			to := (n&0x3f)<<8 | int(b[at+1])
			if to >= at {
				return "", 0, false
			}
			at, limit = to, at
		case n < 64 && at+1+n <= limit && size+n < 254:
			labels = append(labels, string(b[at+1:at+1+n]))
			size += n + 1
			at += 1 + n
		default:
			return "", 0, false
		}
	}
	return "", 0, false
}

// plainName says that name can stand in a configuration file: letters, digits, '-', '_' and '.'.
func plainName(name string) bool {
	for _, c := range []byte(name) {
		if c != '-' && c != '_' && c != '.' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return name != "" && len(name) < 254
}
