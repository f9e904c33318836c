package vm

import (
	"io"
	"strings"
	"sync"
	"unicode"
)

// consoleTail is how many bytes of the guest's console a VM remembers.
const consoleTail = 64 << 10

// console keeps the end of what the guest's kernel printed.
type console struct {
	copy io.Writer // may be nil

	mu   sync.Mutex
	tail []byte
}

// Write never fails: after an error of copy, it is not written to any more.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.tail = append(c.tail, p...)
	if len(c.tail) > 2*consoleTail {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-consoleTail:]...)
	}
	c.mu.Unlock()
	if c.copy != nil {
		if _, err := c.copy.Write(p); err != nil {
			c.copy = nil
		}
	}
	return len(p), nil
}

// bytes returns a copy of the last consoleTail bytes.
func (c *console) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.tail[max(0, len(c.tail)-consoleTail):]...)
}

// panicWords begin Linux's report of a panic.
const panicWords = "Kernel panic - not syncing"

// readable returns the last lines of a console without what a terminal would interpret: the guest may be hostile.
func readable(tail []byte, lines int) string {
	text := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			return r
		case r == '\t':
			return ' '
		case r == '\r':
			return -1
		default:
			return '?'
		}
	}, strings.ToValidUTF8(string(tail), "?"))
	all := strings.Split(strings.TrimRight(text, "\n "), "\n")
	end := len(all)
	for i, line := range all {
		if strings.Contains(line, panicWords) { // the cause is printed before, a trace of addresses after
			end = min(i+2, end)
			break
		}
	}
	return strings.Join(all[max(0, end-lines):end], "\n")
}
