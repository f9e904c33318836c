package machine

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"agentvm/internal/host/embedded"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine/wasmbin"
)

// The machines with a main loop of their own are made by build.sh, too.
var (
	//go:embed standalone.wasm.zst
	standaloneRISCV64 []byte
	//go:embed standalone-arm64.wasm.zst
	standaloneARM64 []byte
)

// unpackOnce returns what unpacks a module when it is first needed.
func unpackOnce(name string, compressed []byte) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) { return embedded.Unpack(name, compressed) })
}

// NewStandaloneProgram is NewProgram for machines of an architecture that WriteStandalone can write. They translate no code.
func NewStandaloneProgram(ctx context.Context, architecture platform.Architecture) (*Program, error) {
	p, err := processorOf(architecture)
	if err != nil {
		return nil, err
	}
	module, err := p.standalone()
	if err != nil {
		return nil, err
	}
	return NewProgram(ctx, ProgramConfig{Architecture: architecture, Module: module, Translation: TranslateNever})
}

const wasmMaxPages = maxLinear / wasmPage

// ErrStandaloneTooLarge is returned for a root disk that has no room beside the machine in WebAssembly's 4 GiB of memory.
var ErrStandaloneTooLarge = errors.New("too large for a WebAssembly module, whose memory ends at 4 GiB")

// WriteStandalone writes the machine, as it is between two slices, as a module: a command of WASI preview 1 that continues
// the guest. disk, of size bytes, is the guest's only disk; it becomes part of the module. The machine must be of a NewStandaloneProgram,
// have one disk, a console and a control port, and is of no use afterwards. What the frames on the control port are, src/common/standalone.c says.
func (m *Machine) WriteStandalone(w io.Writer, disk io.ReaderAt, size int64) error {
	at := int64(m.memory.Size())
	pages := (at + size + wasmPage - 1) / wasmPage
	if size < 0 || pages > wasmMaxPages {
		return fmt.Errorf("a root disk of %d MiB with a machine of %d MiB: %w", size>>20, at>>20, ErrStandaloneTooLarge)
	}
	if err := m.callNothing("captured"); err != nil {
		return err
	}
	state, err := m.call("standalone_state")
	if err != nil {
		return err
	}
	if err := m.write(state, [3]uint32{1, uint32(at), uint32(size)}); err != nil {
		return err
	}
	ram, ok := m.memory.Read(0, uint32(at))
	if !ok {
		return errors.New("the machine's memory cannot be read")
	}
	module, err := m.processor.standalone()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 1<<20)
	if err := writeModule(out, module, uint32(pages), []segments{{bytes.NewReader(ram), 0, at}, {disk, at, size}}); err != nil {
		return err
	}
	return out.Flush()
}

// segments is a part of linear memory.
type segments struct {
	from     io.ReaderAt
	at, size int64
}

// writeModule writes module with another initial memory, which the contents are of, instead of its own data. Source of the format:
// WebAssembly Core Specification 2.0, "Binary Format".
func writeModule(w *bufio.Writer, module []byte, pages uint32, contents []segments) error {
	sections, err := wasmbin.Sections(module)
	if err != nil {
		return err
	}
	_, _ = w.Write(wasmbin.AppendHeader(nil))
	for _, s := range sections {
		switch s.Kind {
		case wasmbin.SectionData, wasmbin.SectionDataCount:
		case wasmbin.SectionMemory: // one, with a maximum
			memory := binary.AppendUvarint(binary.AppendUvarint([]byte{1, 1}, uint64(pages)), wasmMaxPages)
			_, _ = w.Write(wasmbin.AppendSection(nil, s.Kind, memory))
		default:
			_, _ = w.Write(s.Raw)
		}
	}
	return writeData(w, contents)
}

// writeData writes a data section with all that is not zero. It is read twice, because its length comes first.
func writeData(w *bufio.Writer, contents []segments) error {
	count, length := uint64(0), uint64(0)
	err := eachRun(contents, func(at int64, data []byte) error {
		count++
		length += uint64(len(dataHeader(at, len(data)))) + uint64(len(data))
		return nil
	})
	if err != nil {
		return err
	}
	number := binary.AppendUvarint(nil, count)
	_ = w.WriteByte(wasmbin.SectionData)
	_, _ = w.Write(binary.AppendUvarint(nil, length+uint64(len(number))))
	_, _ = w.Write(number)
	return eachRun(contents, func(at int64, data []byte) error {
		_, _ = w.Write(dataHeader(at, len(data)))
		_, err := w.Write(data)
		return err
	})
}

// dataHeader begins an active segment of memory 0: i32.const at, end, length.
func dataHeader(at int64, length int) []byte {
	header := []byte{0, 0x41}
	for value := int64(int32(uint32(at))); ; value >>= 7 { // signed LEB128
		if value >= -64 && value < 64 {
			header = append(header, byte(value)&0x7f)
			break
		}
		header = append(header, byte(value)|0x80)
	}
	return binary.AppendUvarint(append(header, 0x0b), uint64(length))
}

// eachRun calls do with each run of pages that are not zero, of at most 1 MiB. data is valid until do returns.
func eachRun(contents []segments, do func(at int64, data []byte) error) error {
	const page = 4096
	var zero [page]byte
	buffer := make([]byte, 1<<20)
	for _, c := range contents {
		for offset := int64(0); offset < c.size; offset += int64(len(buffer)) {
			data := buffer[:min(int64(len(buffer)), c.size-offset)]
			if n, err := c.from.ReadAt(data, offset); n < len(data) {
				return err
			}
			for start := 0; start < len(data); {
				end := start
				for end < len(data) && !bytes.Equal(data[end:min(end+page, len(data))], zero[:min(page, len(data)-end)]) {
					end = min(end+page, len(data))
				}
				if end == start {
					start += page
					continue
				}
				if err := do(c.at+offset+int64(start), data[start:end]); err != nil {
					return err
				}
				start = end
			}
		}
	}
	return nil
}
