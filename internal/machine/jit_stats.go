package machine

import (
	"fmt"
	"strings"
)

// JITStats counts what was translated for a machine.
type JITStats struct {
	Regions, Instructions int    // installed, guest instructions in them
	Shared                int    // of these: regions that another machine of the program has made
	Stored                int    // of these: regions that came from ProgramConfig.Translations
	Replaced, Evicted     int    // regions that went because others have their entries; that made way for others
	Refused               int    // entries that cannot be translated
	Entered, NoProgress   uint64 // calls of translated code, and those that executed nothing
	BudgetExits           uint64 // calls that executed nothing because the slice's budget was almost used
	Executed              uint64 // instructions in translated code
	Chained               uint64 // regions left for other ones
	Left                  JITLeft
	Native                int64 // bytes of native code in use
	Bytes                 int64 // memory for the native code of all machines of the program
}

// JITLeft counts what regions were left to the interpreter for.
type JITLeft struct {
	Memory, Float, System uint64 // loads and stores, mostly beyond the TLB; floating point; CSRs, calls, fences
	Undecoded, Untaken    uint64 // code that was never executed before; other code that is not translated
	Unmapped              uint64 // pages that the code TLB does not have
}

// JITStats tells what was translated so far. Call it between slices.
func (m *Machine) JITStats() JITStats {
	if m.jit == nil {
		return JITStats{}
	}
	j := m.jit
	s := j.stats
	s.Bytes = int64(j.t.library.Bytes())
	if j.code != nil {
		s.Native = int64(j.code.Used())
	}
	s.Entered, s.NoProgress, s.Executed = j.counter(jitEntered), j.counter(jitNoProgress), j.counter(jitExecuted)
	s.BudgetExits, s.Chained, s.Left.Unmapped = j.counter(jitBudgetExit), j.counter(jitChained), j.counter(jitUnmapped)
	left := m.module.ExportedFunction("jit_left")
	for kind, into := range []*uint64{&s.Left.Memory, &s.Left.Float, &s.Left.System, &s.Left.Undecoded, &s.Left.Untaken} {
		if sum, err := left.Call(m.ctx, uint64(kind)); err == nil {
			*into = sum[0]
		}
	}
	return s
}

// report is what AGENTVM_DEBUG=jitstats prints when a machine is closed.
func (s JITStats) report(retired uint64) string {
	var b strings.Builder
	share := func(n uint64) float64 { return 100 * float64(n) / float64(max(retired, 1)) }
	each := func(n uint64) float64 { return float64(s.Executed) / float64(max(n, 1)) }
	fmt.Fprintf(&b, "jit: %d instructions, %.1f %% of them translated, %.0f for each entry (%d, %d of them without progress, %d at the end of a slice)\n",
		retired, share(s.Executed), each(s.Entered), s.Entered, s.NoProgress, s.BudgetExits)
	fmt.Fprintf(&b, "jit: %d regions with %d instructions, %d shared, %d stored, %d replaced, %d evicted, %d refused, %d KiB of %d KiB\n",
		s.Regions, s.Instructions, s.Shared, s.Stored, s.Replaced, s.Evicted, s.Refused, s.Native>>10, s.Bytes>>10)
	l := s.Left
	fmt.Fprintf(&b, "jit: left for another region %d, memory %d, floating point %d, system %d, new code %d, other code %d, unmapped pages %d\n",
		s.Chained, l.Memory, l.Float, l.System, l.Undecoded, l.Untaken, l.Unmapped)
	return b.String()
}
