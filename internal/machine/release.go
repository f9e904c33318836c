package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// Of struct released_pages in src/common/machine.h.
const (
	releasedHeader = 8   // bytes before the ranges
	releasedRange  = 8   // bytes of one: address and size in linear memory
	releasedMax    = 512 // ranges
)

// releasePages gives the pages that the guest reported as free (its balloon device) back to the host. slice calls it
// when the module's result says that there are some: before the next slice, in which the guest learns of it and may use
// the pages again. What is in them afterwards is zero or what an image has there that the machine was made from, or one that was made
// of it; the guest does not care, and a page that it writes is marked dirty like any other.
func (m *Machine) releasePages(h *hart) (err error) {
	if len(m.others) > 0 { // another hart may be doing the same, or reporting more
		if _, err := h.module.ExportedFunction("hold").Call(h.ctx); err != nil {
			return err
		}
		defer func() {
			_, letGo := h.module.ExportedFunction("let_go").Call(h.ctx)
			err = errors.Join(err, letGo)
		}()
	}
	list, ok := m.memory.Read(m.layout.Released, releasedHeader+releasedMax*releasedRange)
	if !ok {
		return fmt.Errorf("the released pages at %#x are outside the machine's memory", m.layout.Released)
	}
	count := min(binary.LittleEndian.Uint32(list), releasedMax)
	for entry := list[releasedHeader:]; count > 0; count-- {
		address, size := binary.LittleEndian.Uint32(entry), binary.LittleEndian.Uint32(entry[4:])
		if err := m.releaseRange(uint64(address), uint64(size)); err != nil {
			return err
		}
		entry = entry[releasedRange:]
	}
	binary.LittleEndian.PutUint32(list, 0)
	if Reason(h.stack[0]) == reasonIdle {
		h.stack[0] = uint64(reasonBudget) // a guest that idles until its report is answered must continue at once
	}
	return nil
}

// releaseRange looks at the range again: nothing outside of RAM is ever dropped, were the module wrong. The host's pages
// may be larger than the guest's; only whole ones go.
func (m *Machine) releaseRange(address, size uint64) error {
	start, end := uint64(m.layout.RAM), uint64(m.layout.RAM)+m.config.Memory
	if address < start || address > end || size > end-address {
		return fmt.Errorf("released pages at %#x, %d bytes, are not in the machine's RAM", address, size)
	}
	page := uint64(os.Getpagesize())
	from, to := (address+page-1)&^(page-1), (address+size)&^(page-1)
	if from >= to {
		return nil
	}
	pages, ok := m.memory.Read(uint32(from), uint32(to-from))
	if !ok {
		return fmt.Errorf("released pages at %#x, %d bytes, are outside the machine's memory", address, size)
	}
	if err := dropPages(pages); err != nil {
		m.config.Logger.Debug("free memory of the guest stays with the machine", "error", err)
	}
	return nil
}
