package dhcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
)

// messageType is the value of option 53 (RFC 2132 section 9.6); 0 is none.
type messageType byte

const (
	typeDiscover messageType = 1 + iota
	typeOffer
	typeRequest
	typeDecline
	typeAck
	typeNak
	typeRelease
	typeInform
)

// optionCode names an option (RFC 2132, search of RFC 3397).
type optionCode byte

const (
	optionPad         optionCode = 0
	optionSubnetMask  optionCode = 1
	optionRouters     optionCode = 3
	optionDNS         optionCode = 6
	optionDomainName  optionCode = 15
	optionMTU         optionCode = 26
	optionBroadcast   optionCode = 28
	optionRequested   optionCode = 50
	optionLease       optionCode = 51
	optionMessageType optionCode = 53
	optionServer      optionCode = 54
	optionParameters  optionCode = 55
	optionText        optionCode = 56
	optionMaximumSize optionCode = 57
	optionClientID    optionCode = 61
	optionSearch      optionCode = 119
	optionEnd         optionCode = 255
)

const (
	bootRequest, bootReply = 1, 2 // op
	ethernet               = 1    // htype
	clientPort             = 68

	// fixedPart is the length of a message up to its options, the magic cookie included (RFC 2131 section 2).
	fixedPart   = 240
	magicCookie = 0x63825363
	// smallestMessage is that of BOOTP (RFC 951); some clients ignore a shorter one.
	smallestMessage = 300
)

// message has the fields of a message (RFC 2131 section 2) that matter here.
type message struct {
	op, hardware         byte // htype
	transaction          [4]byte
	flags                uint16
	client, yours, relay [4]byte // ciaddr, yiaddr, giaddr
	mac                  []byte  // chaddr, hlen bytes of it
	options              map[optionCode][]byte
}

var errMalformed = errors.New("not a DHCP message")

// parseMessage reads a message. Its slices are of b.
func parseMessage(b []byte) (m message, err error) {
	if len(b) < fixedPart || binary.BigEndian.Uint32(b[236:]) != magicCookie {
		return m, errMalformed
	}
	m = message{
		op: b[0], hardware: b[1], transaction: [4]byte(b[4:]), flags: binary.BigEndian.Uint16(b[10:]),
		client: [4]byte(b[12:]), yours: [4]byte(b[16:]), relay: [4]byte(b[24:]), mac: b[28 : 28+min(b[2], 16)],
	}
	m.options, err = parseOptions(b[fixedPart:])
	return m, err
}

// parseOptions reads options up to their end, which has to be there. The parts of one that comes several times are joined (RFC 3396).
func parseOptions(b []byte) (map[optionCode][]byte, error) {
	options := map[optionCode][]byte{}
	for len(b) > 0 {
		switch code := optionCode(b[0]); {
		case code == optionEnd:
			return options, nil
		case code == optionPad:
			b = b[1:]
		case len(b) < 2 || len(b) < 2+int(b[1]):
			return nil, errMalformed
		default:
			end := 2 + int(b[1])
			options[code] = append(options[code][:len(options[code]):len(options[code])], b[2:end]...)
			b = b[end:]
		}
	}
	return nil, errMalformed
}

// bytes writes the message, its options in the order of their codes.
func (m *message) bytes() []byte {
	b := make([]byte, fixedPart, smallestMessage)
	b[0], b[1], b[2] = m.op, m.hardware, byte(len(m.mac))
	copy(b[4:8], m.transaction[:])
	binary.BigEndian.PutUint16(b[10:], m.flags)
	copy(b[12:16], m.client[:])
	copy(b[16:20], m.yours[:])
	copy(b[24:28], m.relay[:])
	copy(b[28:44], m.mac)
	binary.BigEndian.PutUint32(b[236:], magicCookie)
	for _, code := range slices.Sorted(maps.Keys(m.options)) {
		value := m.options[code]
		for first := true; first || len(value) > 0; first = false {
			part := value[:min(len(value), 255)] // RFC 3396: a longer value in several
			b = append(append(b, byte(code), byte(len(part))), part...)
			value = value[len(part):]
		}
	}
	b = append(b, byte(optionEnd))
	return append(b, bytes.Repeat([]byte{byte(optionPad)}, max(0, smallestMessage-len(b)))...)
}
