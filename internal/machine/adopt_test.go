package machine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/wasi"
)

// untrustedImage is an image from outside this package, in a file that its test may change between two machines.
type untrustedImage struct {
	testing.TB
	program *machine.Program
	*machine.MemoryImage
	file          *os.File
	state         []machine.Part
	config, ram   machine.Part
	decoded       machine.Part
	configuration func() machine.Config
	sums          bool // of machines that have lived
}

// allDevices is a machine with every device there is.
func allDevices() machine.Config {
	const size = 1 << 20
	disk := func(readOnly bool) machine.Disk {
		return machine.Disk{File: wasi.NewDisk(bytes.NewReader(make([]byte, size)), size, readOnly), ReadOnly: readOnly}
	}
	share := func(tag string) machine.Share { return machine.Share{Tag: tag, File: wasi.NewStream(1 << 16)} }
	return machine.Config{
		Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Console: wasi.NewStream(1 << 16), Control: wasi.NewStream(1 << 16),
		Bulk: wasi.NewStream(1 << 16), Network: wasi.NewStream(1 << 16), NetworkHeader: true,
		Disks: []machine.Disk{disk(true), disk(false)}, Shares: []machine.Share{share("home"), share("work")},
	}
}

// newUntrustedImage boots Linux on a machine with all devices, has it work, and writes it into a file.
func newUntrustedImage(t testing.TB, architecture platform.Architecture) *untrustedImage {
	t.Helper()
	cfg := allDevices()
	w := bootWorkerOf(t, architecture, cfg, "work=1")
	w.advance(2e6)
	s := &untrustedImage{TB: t, program: w.program, configuration: allDevices}
	var err error
	if s.state, err = w.StateParts(); err != nil {
		t.Fatal(err)
	}
	s.config, s.ram, s.decoded = w.OtherParts()
	i := w.capture()
	if s.file, err = os.Create(filepath.Join(t.TempDir(), "memory")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.file.Close() })
	if err := s.file.Truncate(i.Size()); err != nil {
		t.Fatal(err)
	}
	for _, e := range i.Extents() {
		if _, err := io.Copy(io.NewOffsetWriter(s.file, e.At), io.NewSectionReader(e.File, e.Offset, e.Length)); err != nil {
			t.Fatal(err)
		}
	}
	w.close()
	s.MemoryImage, err = machine.NewImage(i.Size(), []machine.Extent{{At: 0, Length: i.Size(), File: s.file}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.MemoryImage.Close() })
	return s
}

// put writes over a part of the image, and returns what undoes that.
func (s *untrustedImage) put(at int64, with []byte) (undo func()) {
	s.Helper()
	was := make([]byte, len(with))
	if _, err := s.file.ReadAt(was, at); err != nil {
		s.Fatal(err)
	}
	write := func(b []byte) {
		if _, err := s.file.WriteAt(b, at); err != nil {
			s.Fatal(err)
		}
	}
	write(with)
	return func() { write(was) }
}

// patience is how long a slice may take: many thousand times what it does. There is no way to end one.
const patience = time.Minute

// outcome is what became of a machine.
type outcome struct {
	refused, broke error
	hash           [32]byte
}

// live restores the image, has it run some slices, and ends it. It panics when that does not end.
func (s *untrustedImage) live(what string, slices int) (o outcome) {
	s.Helper()
	watchdog := time.AfterFunc(patience, func() { panic(what + ": a slice does not end") })
	defer watchdog.Stop()
	m, err := s.program.Restore(s.Context(), s.configuration(), s.MemoryImage)
	if err != nil {
		return outcome{refused: err}
	}
	for range slices {
		_, stopped, err := m.Step(20_000)
		if o.broke = err; err != nil || stopped {
			break
		}
	}
	if o.broke == nil {
		ctx, cancel := context.WithCancel(s.Context())
		cancel()
		if _, err := m.Run(ctx); !errors.Is(err, context.Canceled) {
			s.Errorf("%s: Run() = %v although it was cancelled", what, err)
		}
	}
	if s.sums { // takes longer than all the rest
		if o.hash, err = m.Hash(); err != nil {
			s.Error(err)
		}
		if image, err := m.Capture(machine.ExtentsForMany); err != nil {
			s.Errorf("%s: %v", what, err)
		} else if err := image.Close(); err != nil {
			s.Error(err)
		}
	}
	if err := m.Close(); err != nil {
		s.Errorf("%s: %v", what, err)
	}
	return o
}

// A machine that was made from an untrusted image continues as the image's machine does, and so do those made from its captures.
func TestUntrustedMachineEqualsItsOriginal(t *testing.T) {
	t.Parallel()
	for _, architecture := range platform.Supported() {
		t.Run(string(architecture), func(t *testing.T) { untrustedEqualsItsOriginal(t, architecture) })
	}
}

func untrustedEqualsItsOriginal(t *testing.T, architecture platform.Architecture) {
	original := workOfAt(t, architecture, 60e6)
	image := original.capture()
	again, err := machine.NewImage(image.Size(), image.Extents())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	taken := original.restore(lockstep, again)
	copied := newWorker(t)
	cfg := lockstep
	cfg.Console = copied.console
	copied.attach(original.program.CopyImages().Restore(t.Context(), cfg, again))
	for millions := range lockstepMillions(t, architecture) {
		want := original.hash()
		if taken.hash() != want || copied.hash() != want {
			t.Fatalf("they differ after %d million instructions", millions)
		}
		if millions%5 == 4 {
			taken = taken.restore(lockstep, taken.capture())
		}
		for _, w := range []*worker{original, taken, copied} {
			w.advance(1e6)
		}
	}
}

// Whatever the state of an untrusted image is, word by word: its machine is refused, or its slices end.
//
// Of a part that is long, as a queue's entries are, each run has other words: all of them are some four minutes of one processor.
func TestUntrustedStateIsChecked(t *testing.T) {
	t.Parallel()
	checkUntrustedState(t, platform.RISCV64, func(string) bool { return true }, 500, "registers", "virtio devices")
}

// Of the other machine, the parts that are its own.
func TestUntrustedArm64StateIsChecked(t *testing.T) {
	checkUntrustedState(t, platform.ARM64, func(part string) bool { return part == "registers" || part == "interrupt controller" }, 300, "registers")
}

func checkUntrustedState(t *testing.T, architecture platform.Architecture, of func(part string) bool, least int, reached ...string) {
	const each, every = 200, 16
	s := newUntrustedImage(t, architecture)
	random := rand.New(rand.NewPCG(5, 6))
	patterns := []func() uint64{
		func() uint64 { return 0 }, func() uint64 { return ^uint64(0) }, func() uint64 { return random.Uint64() },
		func() uint64 { return 0x7fff_ffff_0000_ffff }, func() uint64 { return random.Uint64N(512) },
		func() uint64 { return random.Uint64N(512) << 32 }, func() uint64 { return machine.RAMBase + random.Uint64N(64<<20) },
	}
	cases, refused, broke := 0, map[string]int{}, 0
	start := rand.Int64N(every)
	t.Logf("from word %d on", start)
	for _, p := range s.state {
		if !of(p.Name) {
			continue
		}
		for n := int64(0); n*8 < p.Size; n++ {
			if n >= each && n%every != start {
				continue
			}
			at := p.At + n*8
			for turn := range 2 {
				word := make([]byte, 8)
				binary.LittleEndian.PutUint64(word, patterns[(int(at/8)*3+turn*4+cases)%len(patterns)]())
				word = word[:min(8, p.At+p.Size-at)]
				what := fmt.Sprintf("%s at %d: %x", p.Name, at-p.At, word)
				undo := s.put(at, word)
				o := s.live(what, 3)
				undo()
				cases++
				if o.refused != nil {
					refused[p.Name]++
					if !errors.Is(o.refused, machine.ErrState) || !strings.Contains(o.refused.Error(), p.Name) {
						t.Errorf("%s: Restore() = %v, want ErrState with the part's name", what, o.refused)
					}
				}
				if o.broke != nil {
					broke++
					t.Errorf("%s: %v", what, o.broke)
				}
			}
		}
	}
	t.Logf("%d cases, refused %v, %d broke", cases, refused, broke)
	for _, part := range reached {
		if cases < least || refused[part] == 0 {
			t.Errorf("the checks of %s were not reached", part)
		}
	}
}

// What the flags of arm64 follow from is such as the processor makes it, which all that reads them relies on.
func TestUntrustedArm64Flags(t *testing.T) {
	const flagA, flagB, flags = 792, 800, 808 // in struct hart_state
	s := newUntrustedImage(t, platform.ARM64)
	registers := s.state[0].At
	const a, b = 0x1234_5678_f000_0001, 0x8765_4321_7fff_ffff
	for kind, want := range [][2]uint64{{a, b}, {0xffff_ffff_f000_0001, 0x7fff_ffff}, {a, 0}, {0xf000_0000, 0}} {
		words := binary.LittleEndian.AppendUint64(nil, a)
		words = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(words, b), uint32(kind))
		undo := s.put(registers+flagA, words)
		m, err := s.program.Restore(t.Context(), s.configuration(), s.MemoryImage)
		undo()
		if err != nil {
			t.Fatal(err)
		}
		image, err := m.Capture(machine.ExtentsForMany)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, flags-flagA)
		for _, e := range image.Extents() {
			if at := registers + flagA - e.At; at >= 0 && at < e.Length {
				if _, err := e.File.ReadAt(got, e.Offset+at); err != nil {
					t.Fatal(err)
				}
			}
		}
		if g := [2]uint64{binary.LittleEndian.Uint64(got), binary.LittleEndian.Uint64(got[flagB-flagA:])}; g != want {
			t.Errorf("flags of kind %d follow from %#x, want %#x", kind, g, want)
		}
		if err := errors.Join(image.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Nothing else in such an image is looked at: not decoded code, translation caches, tables of functions, or where things are.
func TestUntrustedMemoryIsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, architecture := range platform.Supported() {
		t.Run(string(architecture), func(t *testing.T) { untrustedMemoryIsNotBelieved(t, architecture) })
	}
}

func untrustedMemoryIsNotBelieved(t *testing.T, architecture platform.Architecture) {
	s := newUntrustedImage(t, architecture)
	s.sums = true
	want := s.live("as it was", 20)
	if want.refused != nil || want.broke != nil {
		t.Fatal(want.refused, want.broke)
	}
	random := rand.New(rand.NewPCG(7, 8))
	undo := s.fillOther(func(b []byte) {
		for ; len(b) >= 8; b = b[8:] {
			binary.LittleEndian.PutUint64(b, random.Uint64())
		}
	})
	if got := s.live("with garbage", 20); got != want {
		t.Errorf("with garbage everywhere: %v, want %v", got, want)
	}
	undo()
	s.sums = false
	// Some operations that go to where they are: the slice of a machine that believed them would never end.
	for op := range 256 {
		slot := []byte{byte(op), 0, 0, 0, 0, 0, 0, 0}
		undo := s.put(s.decoded.At, bytes.Repeat(slot, 1<<20/len(slot)))
		if got := s.live(fmt.Sprintf("decoded as operation %d", op), 5); got.refused != nil || got.broke != nil {
			t.Errorf("operation %d: %v, %v", op, got.refused, got.broke)
		}
		undo()
	}
}

// fillOther writes over all that is neither RAM nor configuration nor state.
func (s *untrustedImage) fillOther(fill func([]byte)) (undo func()) {
	kept := append(slices.Clone(s.state), s.config, s.ram)
	slices.SortFunc(kept, func(a, b machine.Part) int { return int(a.At - b.At) })
	var undos []func()
	at := int64(0)
	for _, p := range append(kept, machine.Part{At: s.Size()}) {
		if p.At > at {
			b := make([]byte, p.At-at)
			fill(b)
			undos = append(undos, s.put(at, b))
		}
		at = max(at, p.At+p.Size)
	}
	return func() {
		for _, undo := range undos {
			undo()
		}
	}
}

// The configuration in an image is compared with the machine's, and nothing more.
func TestUntrustedConfiguration(t *testing.T) {
	t.Parallel()
	s := newUntrustedImage(t, platform.RISCV64)
	for at := s.config.At; at < s.config.At+s.config.Size; at += 4 {
		for _, word := range []uint32{0, 1, 0x7fff_ffff, ^uint32(0)} {
			what := fmt.Sprintf("configuration at %d: %#x", at-s.config.At, word)
			undo := s.put(at, binary.LittleEndian.AppendUint32(nil, word))
			o := s.live(what, 2)
			undo()
			if o.broke != nil || o.refused != nil && !errors.Is(o.refused, machine.ErrShape) {
				t.Errorf("%s: %v, %v", what, o.refused, o.broke)
			}
		}
	}
	smaller, err := machine.NewImage(s.Size()-65536, []machine.Extent{{At: 0, Length: s.Size() - 65536, File: s.file}})
	if err != nil {
		t.Fatal(err)
	}
	defer smaller.Close()
	if m, err := testProgram(t).Restore(t.Context(), s.configuration(), smaller); !errors.Is(err, machine.ErrShape) {
		t.Errorf("Restore() of a smaller memory = %v, %v, want ErrShape", m, err)
	}
}

// FuzzStrangersState changes the state of a machine and one word of its RAM. The first input is the state as it was.
func FuzzStrangersState(f *testing.F) { fuzzStrangersState(f, platform.RISCV64) }

func FuzzStrangersArm64State(f *testing.F) { fuzzStrangersState(f, platform.ARM64) }

func fuzzStrangersState(f *testing.F, architecture platform.Architecture) {
	s := newUntrustedImage(f, architecture)
	var state []byte
	for _, p := range s.state {
		b := make([]byte, p.Size)
		if _, err := s.file.ReadAt(b, p.At); err != nil {
			f.Fatal(err)
		}
		state = append(state, b...)
	}
	f.Add(state, uint64(0), uint64(0))
	for _, n := range []int{0, 100, 1000, len(state) / 2} {
		f.Add(state[:n], uint64(n), ^uint64(n))
	}
	f.Fuzz(func(t *testing.T, state []byte, at, word uint64) {
		s.TB = t
		var undos []func()
		for _, p := range s.state {
			n := min(int(p.Size), len(state))
			undos = append(undos, s.put(p.At, state[:n]))
			state = state[n:]
		}
		undos = append(undos, s.put(s.ram.At+int64(at%uint64(s.ram.Size-8)), binary.LittleEndian.AppendUint64(nil, word)))
		defer func() {
			for _, undo := range undos {
				undo()
			}
		}()
		o := s.live("fuzzed", 3)
		if o.broke != nil || o.refused != nil && !errors.Is(o.refused, machine.ErrState) {
			t.Errorf("refused %v, broke %v", o.refused, o.broke)
		}
	})
}
