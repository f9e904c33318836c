package guestrpc

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Version is the protocol number. It changes when an older peer would misunderstand a newer one; added methods and
// fields do not change it.
const Version = 1

// The hello is 8 bytes of magic, then, in little endian, version (4 bytes), flags (4 bytes) and nonce (8 bytes). All versions have this
// form. Unknown flags are ignored.
//
//	host                         guest
//	 |                             | port opened
//	 | <------ hello, nonce 0 ---- | "I am listening"
//	 | ------- hello, nonce N ---> | a new session; an older one ends
//	 | <------ hello, nonce N ---- |
//	 | ======= Cap'n Proto ======= |
//
// A virtio console port drops what arrives before the guest has opened it and does not know connections. So the host repeats its
// hello until the guest answers, the guest skips repetitions, and a hello with a new nonce starts a new session wherever the stream
// was. Both ends skip everything else while they wait for a hello: it is left over from an earlier session.
const helloSize = 24

// helloMagic cannot begin a Cap'n Proto message: as a segment count it is far above the limit of 512.
var helloMagic = [8]byte{0xfe, 'a', 'g', 'e', 'n', 't', 'v', 'm'}

type hello struct {
	version uint32
	nonce   uint64
	flags   uint32
}

const (
	// helloKeep, sent by the host, lets the programs of the guest's present session, which this hello ends, run on.
	helloKeep = 1
	// helloOffer, sent by the guest, says that its bootstrap capability is export 0 from the beginning, without a request for it.
	helloOffer = 2
)

func (h hello) encode() []byte {
	b := make([]byte, 0, helloSize)
	b = append(b, helloMagic[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.version)
	b = binary.LittleEndian.AppendUint32(b, h.flags)
	return binary.LittleEndian.AppendUint64(b, h.nonce)
}

// parseHello reads a hello at the start of b.
func parseHello(b []byte) (hello, bool) {
	if len(b) < helloSize || !bytes.HasPrefix(b, helloMagic[:]) {
		return hello{}, false
	}
	return hello{
		version: binary.LittleEndian.Uint32(b[8:]),
		nonce:   binary.LittleEndian.Uint64(b[16:]),
		flags:   binary.LittleEndian.Uint32(b[12:]),
	}, true
}

// VersionError says that host and guest speak different protocols.
type VersionError struct {
	Host, Guest uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the host speaks protocol version %d, the guest's supervisor version %d: use a supervisor and a snapshot made by this agentvm", e.Host, e.Guest)
}
