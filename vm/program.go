package vm

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"agentvm/emulator"
)

// The machine's compiled code is the same for every VM, so those of one process share it, from the first VM's start to
// the last one's end.
var shared struct {
	mu       sync.Mutex
	programs map[string]*program // by cache directory
}

type program struct {
	*emulator.Program
	cacheDir string
	users    int           // guarded by shared.mu
	ready    chan struct{} // closed when Program or err is set
	err      error
}

// acquireProgram compiles the machine or takes what another VM has compiled. A cache that cannot be used costs time only.
func acquireProgram(ctx context.Context, cacheDir string, log *slog.Logger) (*program, error) {
	shared.mu.Lock()
	p, found := shared.programs[cacheDir]
	if !found {
		p = &program{cacheDir: cacheDir, ready: make(chan struct{})}
		if shared.programs == nil {
			shared.programs = make(map[string]*program)
		}
		shared.programs[cacheDir] = p
	}
	p.users++
	shared.mu.Unlock()
	if !found {
		p.compile(context.WithoutCancel(ctx), log)
	}
	<-p.ready
	if p.err != nil {
		p.release()
		return nil, p.err
	}
	return p, nil
}

func (p *program) compile(ctx context.Context, log *slog.Logger) {
	defer close(p.ready)
	start := time.Now()
	p.Program, p.err = emulator.NewProgram(ctx, emulator.ProgramConfig{CacheDir: p.cacheDir})
	if p.err != nil && p.cacheDir != "" {
		log.Warn("compiled code cannot be kept, each start takes longer", "error", p.err)
		p.Program, p.err = emulator.NewProgram(ctx, emulator.ProgramConfig{})
	}
	log.Debug("timing: compiled the machine", "took", time.Since(start))
}

// release gives the program back; the last one to do so frees it.
func (p *program) release() {
	shared.mu.Lock()
	p.users--
	last := p.users == 0
	if last {
		delete(shared.programs, p.cacheDir)
	}
	shared.mu.Unlock()
	if last && p.Program != nil {
		_ = p.Close(context.Background())
	}
}
