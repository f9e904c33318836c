package servername

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Types of records (RFC 8446 section 5.1) and of a handshake's messages (section 4), and extensions.
const (
	recordChange    = 20
	recordAlert     = 21
	recordHandshake = 22
	recordData      = 23

	messageHello = 1

	extensionName = 0
	extensionECH  = 0xfe0d // RFC 9849
	extensionESNI = 0xffce // its drafts up to 6

	headerSize    = 5
	maxRecord     = 16<<10 + 2048 // RFC 5246 section 6.2.3
	messageHeader = 4
)

// record is at the beginning of a record. Those of a ClientHello are held until it is complete; of others the content is not looked at.
func (c *Checker) record(b []byte) (int, error) {
	if len(b) < headerSize {
		return 0, nil
	}
	kind, size := b[0], int(binary.BigEndian.Uint16(b[3:]))
	switch {
	case b[1] != 3 || size == 0 || size > maxRecord:
		return 0, errors.New("this is not TLS, although it begins so")
	case kind == recordHandshake:
		return c.handshake(b)
	case kind != recordChange && kind != recordAlert && kind != recordData:
		return 0, fmt.Errorf("TLS has no records of type %d", kind)
	}
	// Data can be early, with another ClientHello to come.
	c.skip, c.step = int64(headerSize+size), (*Checker).recordRest
	return c.step(c, b)
}

func (c *Checker) recordRest(b []byte) (int, error) { return c.skipped(b, (*Checker).record) }

// handshake is at the first record of a message, of which the records may each have a part.
func (c *Checker) handshake(b []byte) (int, error) {
	var message []byte
	at := 0
	for len(message) < messageHeader || len(message) < messageHeader+messageSize(message) {
		rest := b[at:]
		if len(message) == 0 && len(rest) > headerSize && rest[headerSize] != messageHello && c.named {
			c.step = (*Checker).anything // the handshake has passed its hello
			return len(b), nil
		}
		if len(rest) > headerSize && len(message) == 0 && rest[headerSize] != messageHello {
			return 0, errors.New("the connection does not begin with a ClientHello")
		}
		if len(message) >= messageHeader && messageSize(message) > maxHeld {
			return 0, errHeld
		}
		if len(rest) < headerSize {
			return 0, nil
		}
		size := int(binary.BigEndian.Uint16(rest[3:]))
		if rest[0] != recordHandshake || rest[1] != 3 || size == 0 || size > maxRecord {
			return 0, errors.New("a ClientHello is interrupted")
		}
		if len(rest) < headerSize+size {
			return 0, nil
		}
		message = append(message, rest[headerSize:headerSize+size]...)
		at += headerSize + size
	}
	if len(message) > messageHeader+messageSize(message) {
		return 0, errors.New("a ClientHello has something behind it in its record")
	}
	name, err := helloName(message[messageHeader:])
	if err != nil {
		return 0, err
	}
	if c.named && name != c.name {
		return 0, fmt.Errorf("a second ClientHello names %.80q, and the first one %.80q", name, c.name)
	}
	if err := c.saw(TLS, name); err != nil {
		return 0, err
	}
	c.name = name
	return at, nil
}

func messageSize(message []byte) int {
	return int(message[1])<<16 | int(message[2])<<8 | int(message[3])
}

// fields reads the fields of a message; after the first that does not fit, bad is true.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) take(n int) []byte {
	if n > len(f.rest) {
		f.bad, f.rest = true, nil
		return make([]byte, n)
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) number() int { return int(binary.BigEndian.Uint16(f.take(2))) }

// vector is a field with its length before it, in one byte or two.
func (f *fields) vector(lengthBytes int) fields {
	n := int(f.take(1)[0])
	if lengthBytes == 2 {
		n = n<<8 | int(f.take(1)[0])
	}
	if n > len(f.rest) {
		f.bad, f.rest = true, nil
		return fields{bad: true}
	}
	return fields{rest: f.take(n)}
}

var errHello = errors.New("the ClientHello is malformed")

// helloName returns the one name in a ClientHello (RFC 8446 section 4.1.2).
func helloName(hello []byte) (name string, err error) {
	f := fields{rest: hello}
	f.take(2 + 32) // version, random
	f.vector(1)    // session
	f.vector(2)    // ciphers
	f.vector(1)    // compression
	if !f.bad && len(f.rest) == 0 {
		return "", errNoName
	}
	extensions := f.vector(2)
	if f.bad || len(f.rest) > 0 {
		return "", errHello
	}
	found := false
	for len(extensions.rest) > 0 {
		kind := extensions.number()
		content := extensions.vector(2)
		switch {
		case extensions.bad:
			return "", errHello
		case kind == extensionECH || kind == extensionESNI:
			return "", errors.New("the name of the server is encrypted (ECH) and cannot be seen: turn that off in the client")
		case kind == extensionName && found:
			return "", errHello
		case kind == extensionName:
			found = true
			if name, err = nameList(content); err != nil {
				return "", err
			}
		}
	}
	if extensions.bad {
		return "", errHello
	}
	if !found {
		return "", errNoName
	}
	return name, nil
}

var errNoName = errors.New("the ClientHello names no server (SNI)")

// nameList reads a list of one name.
func nameList(content fields) (string, error) {
	list := content.vector(2)
	kind := list.take(1)[0]
	name := list.vector(2)
	if content.bad || list.bad || len(content.rest)+len(list.rest) > 0 || kind != 0 {
		return "", errHello
	}
	return hostName(string(name.rest))
}

// hostName returns a name in lower case. Only letters, digits, hyphens, underscores and dots are one: what a server might read differently is
// refused.
func hostName(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	odd := func(r rune) bool {
		return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.')
	}
	if name == "" || len(name) > 253 || strings.ContainsFunc(name, odd) || strings.Contains(name, "..") || name[0] == '.' {
		return "", fmt.Errorf("%.80q is not the name of a server", text)
	}
	return name, nil
}
