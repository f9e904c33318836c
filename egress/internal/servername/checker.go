package servername

import (
	"errors"
	"fmt"
)

// Protocols in which a name can be seen.
const (
	TLS  = "TLS server name"
	HTTP = "HTTP Host"
)

// maxHeld bounds the bytes that wait for the rest of a ClientHello or of a request's head. Real ones have 2 KiB, seldom 8.
const maxHeld = 32 << 10

var errHeld = fmt.Errorf("the name of the server is not in the first %d bytes", maxHeld)

// Checker follows one connection.
type Checker struct {
	allow func(protocol, name string) error
	step  func(*Checker, []byte) (n int, err error)
	named bool   // a name was seen and allowed
	name  string // TLS: the first ClientHello's
	held  []byte // came, and was not passed on
	skip  int64  // bytes of a record or a body that are passed without a look
}

// New returns a Checker that asks allow about each name, which is in lower case and without a final dot.
func New(allow func(protocol, name string) error) *Checker {
	return &Checker{allow: allow, step: (*Checker).begin}
}

// Named reports whether a name was seen and allowed.
func (c *Checker) Named() bool { return c.named }

// Next takes the client's next bytes, which the caller keeps, and returns what can be passed on now, which may be a part of p. After an error,
// which may be that of allow, nothing more can be.
func (c *Checker) Next(p []byte) (pass []byte, err error) {
	b, at, ours := p, 0, len(c.held) > 0
	if ours {
		b = append(c.held, p...)
		c.held = nil
	}
	for at < len(b) {
		n, err := c.step(c, b[at:])
		if err == nil && n == 0 && len(b)-at > maxHeld {
			err = errHeld
		}
		if err != nil {
			c.held = append([]byte(nil), b...)
			return nil, err
		}
		if n == 0 {
			break
		}
		at += n
	}
	if at == 0 && ours {
		c.held = b
		return nil, nil
	}
	c.held = append(c.held, b[at:]...)
	return b[:at:at], nil
}

// Release returns what was held back.
func (c *Checker) Release() []byte {
	held := c.held
	c.held = nil
	return held
}

// End is called when the client sends nothing more.
func (c *Checker) End() error {
	if len(c.held) > 0 {
		return errors.New("the connection ended in the middle of what names its server")
	}
	return nil
}

// A step returns how many of the bytes that came it has no objection to, and which step is next, or 0 when it needs more of them.

func (c *Checker) begin(b []byte) (int, error) {
	c.step = (*Checker).head
	if b[0] == recordHandshake {
		c.step = (*Checker).record
	}
	return c.step(c, b)
}

func (c *Checker) anything(b []byte) (int, error) { return len(b), nil }

// skipped passes the next c.skip bytes, and then does what.
func (c *Checker) skipped(b []byte, then func(*Checker, []byte) (int, error)) (int, error) {
	n := min(c.skip, int64(len(b)))
	if c.skip -= n; c.skip == 0 {
		c.step = then
	}
	return int(n), nil
}

// saw asks about a name.
func (c *Checker) saw(protocol, name string) error {
	if err := c.allow(protocol, name); err != nil {
		return err
	}
	c.named = true
	return nil
}
