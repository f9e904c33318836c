package machine

import (
	"fmt"
	"sync/atomic"
)

// maxExpected bounds what machines of an image are given before they ask, in bytes: of a start and a first command it is 2 MiB.
const maxExpected = 4 << 20

// Range is a part of a machine's linear memory, in bytes, of whole pages.
type Range struct{ At, Length int64 }

// Expect says what the machines that are made of an image will soon write. Restore has their own copies of that made while they
// already run, all at once instead of page by page, where the system can (Linux 5.14); it changes nothing but the time that takes. What
// is not in the memory is an error; more than 4 MiB are too much to be worth it, and ignored. Images of captured machines expect what
// those wrote since the capture before. Call it before the image is used.
func (i *MemoryImage) Expect(list []Range) error {
	var spans []span
	for _, r := range list {
		if (r.At|r.Length)%imagePage != 0 || r.At < 0 || r.Length <= 0 || r.At > i.content.size || r.Length > i.content.size-r.At {
			return fmt.Errorf("%d bytes at %#x are not pages of a memory of %d bytes", r.Length, r.At, i.content.size)
		}
		spans = append(spans, span{r.At, r.At + r.Length})
	}
	i.content.expected = worthwhile(spans)
	return nil
}

// worthwhile are the spans, or none when they are too much.
func worthwhile(spans []span) []span {
	total := int64(0)
	for _, s := range spans {
		total += s.end - s.at
	}
	if total > maxExpected {
		return nil
	}
	return spans
}

// Written lists what the machine may have written since the image that it was made from, or since the last Capture, between two
// slices; nothing when that is more than MemoryImage.Expect takes.
func (m *Machine) Written() ([]Range, error) {
	spans, err := m.written()
	if err != nil {
		return nil, err
	}
	var list []Range
	for _, s := range worthwhile(spans) {
		list = append(list, Range{s.at, s.end - s.at})
	}
	return list, nil
}

// warming is the goroutine that copies what a restored machine is expected to write. The machine runs meanwhile; Close waits.
type warming struct {
	stop atomic.Bool
	done chan struct{}
}

func (m *Machine) warm(spans []span) {
	if len(spans) == 0 || !canPopulate || m.linear.copies {
		return
	}
	w := &warming{done: make(chan struct{})}
	m.warming = w
	memory := m.linear.memory
	go func() {
		defer close(w.done)
		for _, s := range spans {
			if w.stop.Load() || populate(memory[s.at:s.end]) != nil {
				return
			}
		}
	}()
}

// end waits until the memory is not touched any more.
func (w *warming) end() {
	if w != nil {
		w.stop.Store(true)
		<-w.done
	}
}
