package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// ErrState is returned by Restore for an untrusted image whose machine is in a state that no machine can be in.
var ErrState = errors.New("the image is of no machine")

// stateNames are those of parts in src/common/adopt.c, in its order.
var stateNames = []string{
	"registers", "cycle counter", "clock", "interrupt controller", "real-time clock", "generation device", "virtio devices",
	"console ports", "network", "shares", "balloon",
}

// abiAdoption mirrors struct adoption of src/common/adopt.c.
type abiAdoption struct {
	Count, Reserved uint32
	Part            [16]struct {
		State          abiRange
		Copy, Reserved uint32
	}
}

// maxState bounds one part of the state: more is a mistake in src/common/adopt.c.
const maxState = 64 << 10

// restoreUntrusted makes a new machine that continues where the image's machine was. From the image it takes the RAM, and of the rest
// of the state only what src/common/adopt.c names and checks. Decoded code, translation caches and the module's own data are this machine's. m.base becomes
// an image of the RAM alone.
func (m *Machine) restoreUntrusted(c *content) error {
	var saved abiConfig
	if err := decode(c.read, m.layout.Config, &saved); err != nil {
		return err
	}
	wanted := m.config.abi()
	if err := saved.sameShape(&wanted); err != nil {
		return err
	}
	if err := m.configure(); err != nil {
		return err
	}
	if size := int64(m.memory.Size()); c.size != size {
		return fmt.Errorf("%w: %d MiB of memory, this machine has %d", ErrShape, c.size>>20, size>>20)
	}
	ram := c.within(int64(m.layout.RAM), int64(m.layout.RAM)+int64(m.config.Memory))
	m.base = ram
	if err := m.linear.fill(ram); err != nil {
		return fmt.Errorf("map the image: %w", err)
	}
	m.trimming.mapped = true
	if err := m.takeState(c); err != nil {
		return err
	}
	if err := m.callNothing("restored"); err != nil {
		return err
	}
	return m.readResult()
}

// takeState hands the machine copies of the other one's state.
func (m *Machine) takeState(c *content) error {
	at, err := m.call("adoption")
	if err != nil {
		return err
	}
	var list abiAdoption
	if err := m.read(at, &list); err != nil {
		return err
	}
	if int(list.Count) != len(stateNames) {
		return fmt.Errorf("machine.wasm has %d parts of a machine's state, this program %d: rebuild it with `make wasm`", list.Count, len(stateNames))
	}
	for _, p := range list.Part[:list.Count] {
		if p.State.Size > maxState {
			return fmt.Errorf("machine.wasm has a part of a machine's state of %d bytes, of at most %d: see src/common/adopt.c", p.State.Size, maxState)
		}
		to, ok := m.memory.Read(p.Copy, p.State.Size)
		if !ok {
			return fmt.Errorf("the place for a machine's state at %#x is outside the machine's memory", p.Copy)
		}
		if err := c.read(p.State.Address, to); err != nil {
			return err
		}
	}
	if err := m.takeOthers(c, list.Part[0].Copy, list.Part[0].State.Size); err != nil {
		return err
	}
	refused, err := m.call("adopt")
	if err == nil && refused != 0 {
		err = fmt.Errorf("%w: its %s cannot be", ErrState, stateNames[min(int(refused), len(stateNames))-1])
	}
	return err
}

// takeOthers hands the other harts copies of their registers, one after the other at the place of the first one's.
func (m *Machine) takeOthers(c *content, at, size uint32) error {
	if len(m.others) == 0 {
		return nil
	}
	place, ok := m.memory.Read(at, size) // of which takeState has made sure
	if !ok {
		return errHart
	}
	first := bytes.Clone(place)
	for _, h := range m.others {
		if err := c.read(h.address(), place); err != nil {
			return err
		}
		taken, err := h.module.ExportedFunction("adopt_hart").Call(h.ctx)
		if err == nil && taken[0] == 0 {
			err = fmt.Errorf("%w: the registers of processor %d cannot be", ErrState, h.number)
		}
		if err != nil {
			return err
		}
	}
	copy(place, first)
	return nil
}

// read reads the image's memory from an address on. What is in no part is zeros.
func (c *content) read(address uint32, to []byte) error {
	return readParts(c.parts, int64(address), to)
}

// readParts reads the memory that ascending parts make from an address on.
func readParts(parts []part, from int64, to []byte) error {
	clear(to)
	end := from + int64(len(to))
	for _, p := range parts {
		begin, stop := max(from, p.at), min(end, p.end())
		if begin >= end {
			break
		}
		if begin >= stop {
			continue
		}
		part := to[begin-from : stop-from]
		if n, err := p.source.file.ReadAt(part, p.offset+begin-p.at); n < len(part) {
			return fmt.Errorf("read the image at %#x: %w", begin, errors.Join(err, io.ErrUnexpectedEOF))
		}
	}
	return nil
}

// within returns a content with what is between two addresses, multiples of a page, and a reference to it.
func (c *content) within(from, to int64) *content {
	part := &content{size: c.size}
	for _, p := range c.parts {
		begin, end := max(from, p.at), min(to, p.end())
		if begin < end {
			p.offset += begin - p.at
			p.at, p.length = begin, end-begin
			part.parts = append(part.parts, p)
		}
	}
	part.adopt()
	return part
}

// startUntrusted makes the machine of an untrusted image.
func (m *Machine) startUntrusted(ctx context.Context, p *Program, c *content) error {
	defer c.release()
	if err := m.instantiate(ctx, p); err != nil {
		return err
	}
	m.linear.copies = p.copyImages
	if err := m.restoreUntrusted(c); err != nil {
		return err
	}
	return m.startJIT(p)
}
