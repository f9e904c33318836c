package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tetratelabs/wazero/api"

	"agentvm/internal/host/debugenv"
	"agentvm/wasi"
)

// RAMBase is the guest physical address of the first byte of RAM.
const RAMBase = 0x8000_0000

// Machine is one instance of the emulated computer. See the package documentation for who may call it.
type Machine struct {
	config        Config
	processor     *processor
	system        *wasi.System
	clock         hostClock
	memory        api.Memory
	linear        *linearMemory
	layout        abiLayout
	layoutAddress uint32
	hart                  // the first one, whose slices also look at the devices
	others        []*hart // in instances of the module of their own
	executing     struct {
		sync.Mutex
		harts int
	}

	base     *content // what the memory was at the last Capture or Restore; nil: zero
	filed    int64    // bytes that captures have written into files since one wrote everything
	exposed  bool     // RAM was handed out: what is written there is not marked
	broken   error    // the memory is not there any more
	warming  *warming // nil: it is not, or was never
	trimming trimming
}

// NewMachine makes a machine that is powered off: load a program, then Run it. The files in cfg belong to the
// machine from now on, also when NewMachine fails.
func (p *Program) NewMachine(ctx context.Context, cfg Config) (*Machine, error) {
	m := newMachine(p, cfg)
	if err := m.start(ctx, p); err != nil {
		m.Close()
		return nil, fmt.Errorf("make a machine: %w", err)
	}
	return m, nil
}

func newMachine(p *Program, cfg Config) *Machine {
	m := &Machine{config: cfg, processor: p.processor}
	m.hart = hart{m: m, budget: firstBudget}
	m.system = wasi.NewSystem(wasi.Config{Clock: &m.clock, Rand: cfg.Rand, Logger: cfg.Logger})
	m.attachFiles()
	return m
}

func (m *Machine) start(ctx context.Context, p *Program) error {
	if err := m.config.validate(); err != nil {
		return err
	}
	if err := m.instantiate(ctx, p); err != nil {
		return err
	}
	if err := m.configure(); err != nil {
		return err
	}
	return m.startJIT(p)
}

func (m *Machine) attachFiles() {
	attach := func(fd int32, f wasi.File) {
		if f != nil {
			m.system.SetFile(fd, f)
		}
	}
	attach(fdConsoleIn, m.config.Console)
	attach(fdConsoleOut, m.config.Console)
	attach(fdControl, m.config.Control)
	attach(fdBulk, m.config.Bulk)
	attach(fdNetwork, m.config.Network)
	for i, d := range m.config.Disks {
		attach(int32(fdDisk+i), d.File)
	}
	for i, s := range m.config.Shares {
		attach(int32(fdShare+i), s.File)
	}
}

// instantiate makes the module's instance and learns where its parts are.
func (m *Machine) instantiate(ctx context.Context, p *Program) error {
	m.ctx = wasi.WithSystem(context.WithoutCancel(ctx), m.system)
	memory, err := newLinearMemory(m.config.Memory + tablesSize(m.config.Memory, m.config.harts()))
	if err != nil {
		return fmt.Errorf("reserve %d MiB of memory: %w", m.config.Memory>>20, err)
	}
	m.linear = memory
	if err := m.instantiateIn(p, memory); err != nil {
		memory.Free()
		return err
	}
	m.memory = m.module.Memory()
	if err := m.instantiateOthers(p); err != nil {
		return err
	}
	layoutAddress, err := m.call("configure")
	if err != nil {
		return err
	}
	m.layoutAddress = layoutAddress
	if err := m.read(layoutAddress, &m.layout); err != nil {
		return err
	}
	return m.layout.check()
}

// tablesSize bounds what the module adds to RAM: its data, the decoded pages and a table entry for each RAM page.
func tablesSize(memory uint64, harts int) uint64 {
	return 192<<20 + memory/1024 + uint64(harts-1)*(72<<20+memory/1024)
}

func (m *Machine) configure() error {
	if err := m.write(m.layout.Config, m.config.abi()); err != nil {
		return err
	}
	if code, err := m.call("init"); err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("%d MiB of memory are not to be had (code %d)", m.config.Memory>>20, code))
	}
	if err := m.read(m.layoutAddress, &m.layout); err != nil {
		return err
	}
	return m.startOthers()
}

func (m *Machine) call(name string) (uint32, error) {
	results, err := m.module.ExportedFunction(name).Call(m.ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return uint32(results[0]), nil
}

// callNothing calls an export without arguments and results.
func (m *Machine) callNothing(name string) error {
	if _, err := m.module.ExportedFunction(name).Call(m.ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// read decodes a structure at an address of linear memory.
func (m *Machine) read(address uint32, into any) error {
	data, ok := m.memory.Read(address, uint32(binary.Size(into)))
	if !ok {
		return fmt.Errorf("address %#x is outside the machine's memory", address)
	}
	_, err := binary.Decode(data, binary.LittleEndian, into)
	return err
}

// decode decodes a structure at an address of what read reads.
func decode(read func(uint32, []byte) error, address uint32, into any) error {
	data := make([]byte, binary.Size(into))
	if err := read(address, data); err != nil {
		return err
	}
	_, err := binary.Decode(data, binary.LittleEndian, into)
	return err
}

// write encodes a structure at an address of linear memory.
func (m *Machine) write(address uint32, from any) error {
	encoded, err := binary.Append(nil, binary.LittleEndian, from)
	if err != nil {
		return err
	}
	if !m.memory.Write(address, encoded) {
		return fmt.Errorf("address %#x is outside the machine's memory", address)
	}
	return nil
}

// RAM is the guest's memory, from RAMBase on. The slice aliases it: write only between slices. Writes through it
// are not tracked, so the next Capture has to look at all of the RAM.
func (m *Machine) RAM() ([]byte, error) {
	m.exposed = true
	return m.ram()
}

// ram is RAM for those who mark what they write.
func (m *Machine) ram() ([]byte, error) {
	ram, ok := m.memory.Read(m.layout.RAM, uint32(m.config.Memory))
	if !ok {
		return nil, errors.New("the machine's RAM is outside its memory")
	}
	return ram, nil
}

// Retired is the number of instructions executed until the end of the last slice. Any goroutine may call it, also after
// Close.
func (m *Machine) Retired() uint64 {
	sum := m.retired.Load()
	for _, h := range m.others {
		sum += h.retired.Load()
	}
	return sum
}

// Progress is how far a machine is. Whoever looks at it twice sees whether the machine is still in the same slice, and there in the same
// call of its host.
type Progress struct {
	Slice   uint64 // counts beginnings and ends: odd while the module executes
	Call    uint64 // the same of its calls of WASI: odd while it waits for one
	Retired uint64 // instructions executed until the end of the last slice
}

// Progress is where the machine is now. Any goroutine may call it, also after Close.
func (m *Machine) Progress() Progress {
	return Progress{m.slowSlice(), m.system.Calls(), m.Retired()}
}

// slowSlice is which slice is being executed: of several processors the one that was in the same slice when this was asked last.
func (m *Machine) slowSlice() uint64 {
	const number = 56 // the bits from which on the processor is
	slow := m.slices.Load()
	for _, h := range m.others {
		if now := h.slices.Load(); h.looked.Swap(now) == now && now%2 == 1 {
			slow = now | uint64(h.number)<<number
		}
	}
	return slow
}

// PC is the address of the next instruction.
func (m *Machine) PC() uint64 { return m.result.PC }

// Close frees the machine and closes its files. It must not be called while Run is running.
func (m *Machine) Close() error {
	err := m.system.Close()
	m.warming.end()
	if m.jit != nil && debugenv.Has("jitstats") {
		fmt.Fprint(os.Stderr, m.JITStats().report(m.Retired()))
	}
	for _, h := range m.all() {
		err = errors.Join(err, h.close())
	}
	err = errors.Join(err, m.base.release())
	m.base = nil
	return err
}

// hostClock is the guest's view of time: monotonic since the process started, and the host's wall clock.
type hostClock struct{}

var processStart = time.Now()

func (*hostClock) Realtime() int64  { return time.Now().UnixNano() }
func (*hostClock) Monotonic() int64 { return int64(time.Since(processStart)) }

var errHart = errors.New("the hart is outside the machine's memory")

// Registers is the part of the hart's state that programs see.
type Registers struct {
	X  [32]uint64 // integer registers; x0 stays zero
	F  [32]uint64 // floating-point registers, singles NaN-boxed
	PC uint64
}

// Registers reads the hart's registers between two slices.
func (m *Machine) Registers() (Registers, error) {
	var r Registers
	err := m.read(m.layout.Hart, &r)
	return r, err
}

// SetRegisters replaces the hart's registers between two slices.
func (m *Machine) SetRegisters(r Registers) error {
	data, ok := m.memory.Read(m.layout.Hart, uint32(binary.Size(r)))
	if !ok {
		return errHart
	}
	r.X[0] = 0
	_, err := binary.Encode(data, binary.LittleEndian, r)
	return err
}

// enterAt sets the program counter and the register in which a program expects the device tree, as the boot protocols ask.
func (m *Machine) enterAt(pc, tree uint64) error {
	if err := m.write(m.layout.Hart+m.processor.tree, tree); err != nil {
		return err
	}
	return m.write(m.layout.Hart+m.processor.pc, pc)
}
