package vm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"agentvm/internal/host/buildid"
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
	"agentvm/internal/host/refcount"
	"agentvm/internal/machine"
	"agentvm/internal/storage/snapshot"
	"agentvm/internal/storage/translations"
)

// emulator is the machine of one VM, as this package needs it: a *machine.Machine, or another that runs a whole computer with the same
// devices, such as a WASI program with its console on stdio and its network as QEMU-framed Ethernet on a socket.
//
// Everything that the guest reaches is in the machine.Config that the machine is made with: files for its console, control and bulk
// streams, network card, disks and mounts. The machine reads and writes them without blocking, between and during slices, learns by their
// notifications when they are ready, and closes each of them once, in Close. A machine without a device for one of them leaves it unread.
//
// The VM's worker calls all methods, one at a time, except for Progress, which every goroutine may call, also during Run and after Close.
// Only Run blocks; the others return within milliseconds.
type emulator interface {
	// Run executes the guest until it stops by itself. When ctx ends, it returns ctx's error itself within a slice's time, and the next
	// Run continues at that point. Any other error means that the machine is broken: only Close follows.
	//
	// It executes in slices of less than a millisecond, the only parts that nothing can interrupt. Waiting for input, or for the
	// guest's next timer, is no part of a slice and takes no processor time.
	Run(ctx context.Context) (machine.Exit, error)
	// StopClock has the guest's time stand still until StartClock.
	StopClock() error
	StartClock() error
	// Capture returns the memory at this moment, from which other machines of the same kind continue. The caller closes it. The
	// machine runs on. extents bounds the image's, such as machine.ExtentsForMany. With an error there is no base, fork or snapshot; a
	// machine that cannot be captured returns errors.ErrUnsupported.
	Capture(extents int) (*machine.MemoryImage, error)
	// Written returns what was written since the last Capture, so that later machines have copies of it early: it saves time only, and
	// nil is a correct answer.
	Written() ([]machine.Range, error)
	// Progress returns which slice is being executed, and how many instructions were.
	Progress() machine.Progress
	// Close frees the machine and closes its files, which ends the goroutines at their other ends. It is called once, after the last Run.
	Close() error
}

// emulatorKind makes the machines of some VMs.
type emulatorKind struct {
	digest string // of its build, in hexadecimal: a saved machine continues only in machines of the same
	// start makes a machine with these devices that continues from memory, or boots linux when memory is nil. ctx bounds the making
	// only. The devices' files belong to the machine from now on, also on failure.
	start func(ctx context.Context, devices machine.Config, linux machine.Linux, memory *machine.MemoryImage) (emulator, error)
}

// programs has the machines' compiled code by architecture and cache directory. All VMs of the process share it.
var programs = refcount.Map[*machine.Program]{Free: func(p *machine.Program) { _ = p.Close(context.Background()) }}

func programKey(architecture platform.Architecture, harts bool, cacheDir string) string {
	return fmt.Sprint(architecture, ":", harts, ":", cacheDir)
}

// acquireProgram compiles the machine, or shares what another VM has compiled. cacheDir is a folder of the store, which keeps what is translated, too. A cache
// that cannot be used, or whose key cannot be kept outside of the store, costs only time.
func acquireProgram(ctx context.Context, architecture platform.Architecture, harts bool, cacheDir string, log *slog.Logger) (*refcount.Ref[*machine.Program], error) {
	return programs.Acquire(programKey(architecture, harts, cacheDir), func() (program *machine.Program, err error) {
		start, ctx := time.Now(), context.WithoutCancel(ctx)
		config := machine.ProgramConfig{Architecture: architecture, Harts: harts, CacheDir: cacheDir}
		if cacheDir != "" {
			if build := buildid.Read(); build != "" {
				config.Translations = openTranslations(filepath.Dir(cacheDir), build, log)
			}
			config.CacheKey, err = private.CodeKey(filepath.Dir(cacheDir))
		}
		if err == nil {
			program, err = machine.NewProgram(ctx, config)
		}
		if err != nil && cacheDir != "" {
			log.Warn("compiled code cannot be kept, each start takes longer", "error", err)
			program, err = machine.NewProgram(ctx, machine.ProgramConfig{Architecture: architecture, Harts: harts})
		}
		clear(config.CacheKey) // before a guest runs: nothing that this process compiles later is kept
		log.Debug("timing: compiled the machine", "took", time.Since(start))
		return program, err
	})
}

// openTranslations opens where a store keeps translated code. The key is read when the code is needed, also by a confined process: see docs/security/hardening.md.
func openTranslations(store, build string, log *slog.Logger) *translations.Store {
	return translations.Open(translations.Config{
		Dir: filepath.Join(store, translations.Folder), Build: build, Logger: log,
		Key: func() []byte { return snapshot.TranslationsKey(store) },
	})
}

// startMachine is emulatorKind.start for machines of package machine.
func startMachine(ctx context.Context, p *machine.Program, devices machine.Config, linux machine.Linux, memory *machine.MemoryImage) (emulator, error) {
	if memory != nil {
		m, err := p.Restore(ctx, devices, memory)
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	m, err := p.NewMachine(ctx, devices)
	if err != nil {
		return nil, err
	}
	if err := m.LoadLinux(linux); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}
