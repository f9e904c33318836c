package machine

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"
	"golang.org/x/sys/cpu"

	"agentvm/internal/debugenv"
	"agentvm/internal/machine/jit"
	"agentvm/internal/machine/native"
)

// Translation says what becomes of guest code that is executed often.
type Translation int

const (
	// TranslateDefault is TranslateHot, to native code without wazero where there is a translator for it (linux/amd64, linux/arm64) unless AGENTVM_DEBUG
	// contains "jit"; but TranslateNever where wazero has no compiler or AGENTVM_DEBUG contains "nojit".
	TranslateDefault Translation = iota
	// TranslateNever interprets everything.
	TranslateNever
	// TranslateHot translates hot code in the background.
	TranslateHot
	// TranslateWaiting is TranslateHot, but each slice waits for the translations it asked for: the same each time, for
	// tests and deterministic machines.
	TranslateWaiting
	// TranslateAll translates code when it is first reached, before it is executed. Slow, and the same each time: for tests.
	TranslateAll
)

// DefaultCodeBytes bounds the translated code of a process, by estimate.
const DefaultCodeBytes = 64 << 20

// queueLength is how many pages may wait for the translator; what is too much is asked for again when it is still hot.
const queueLength = 256

// translator makes and keeps translations for all machines of a Program. Its goroutine starts with the first machine that
// translates in the background, and ends with the Program.
type translator struct {
	runtime wazero.Runtime
	mode    Translation
	limit   int64
	shim    wazero.CompiledModule
	native  wazero.CompiledModule // see jit_native.go; nil: hot code becomes WebAssembly

	cacheDir string // of compiled code; empty: there is none
	cacheKey []byte
	compiled int // modules, by the goroutine of background work

	dumpOnce sync.Once
	dumpDir  string

	profile *profile

	queue chan *job
	done  chan struct{}
	start sync.Once
	wait  sync.WaitGroup

	mu    sync.Mutex
	known map[[sha256.Size]byte]*translation
	order []*translation // in the order in which they were made
	bytes atomic.Int64   // of known, by estimate
}

// job asks for one translation.
type job struct {
	layout  *jit.Layout
	request *request
	key     [sha256.Size]byte
	to      *machineJIT
}

func (j *job) log() *slog.Logger { return j.to.m.config.Logger }

// translation is a compiled region. Its module is nil when there is nothing to translate.
type translation struct {
	key      [sha256.Size]byte
	region   jit.Region
	compiled wazero.CompiledModule
	bytes    int64
	users    atomic.Int32 // instances, and those who are about to make one
}

func newTranslator(ctx context.Context, engine wazero.Runtime, cfg ProgramConfig) (*translator, error) {
	t := &translator{
		runtime: engine, mode: translationMode(cfg), limit: cfg.CodeBytes, cacheDir: cfg.CacheDir, cacheKey: cfg.CacheKey,
		profile: newProfile(), queue: make(chan *job, queueLength), done: make(chan struct{}), known: map[[sha256.Size]byte]*translation{},
	}
	if t.limit == 0 {
		t.limit = DefaultCodeBytes
	}
	var err error
	if t.shim, err = engine.CompileModule(ctx, jit.TableModule()); err != nil {
		return nil, fmt.Errorf("compile the access to the table of functions: %w", err)
	}
	if t.mode != TranslateNever && translatesNatively(cfg) && native.Supported() {
		if t.native, err = hostNative(ctx, engine); err != nil {
			return nil, fmt.Errorf("compile the way into native code: %w", err)
		}
	}
	return t, nil
}

func translationMode(cfg ProgramConfig) Translation {
	switch {
	case debugenv.Has("nojit") || cfg.Interpreter:
		return TranslateNever
	case cfg.Translation != TranslateDefault:
		return cfg.Translation
	case !compiles():
		return TranslateNever
	}
	return TranslateHot
}

// translatesNatively tells whether hot code is to become native code without wazero. A program that has chosen when translations are made
// means those by wazero.
func translatesNatively(cfg ProgramConfig) bool {
	return debugenv.Has("native") || cfg.Translation == TranslateDefault && !debugenv.Has("jit")
}

// TranslatesByDefault tells whether machines of a zero ProgramConfig translate code that is hot. They decode code in another way, which
// stays so in their images: a machine of the other kind is correct, and slower.
func TranslatesByDefault() bool { return translationMode(ProgramConfig{}) != TranslateNever }

// compiles tells whether wazero has a compiler here. Where it interprets what we translate, the machine's interpreter may as well do
// without. The list is that of wazero v1.12.0, internal/platform.
func compiles() bool {
	switch runtime.GOOS {
	case "linux", "darwin", "freebsd", "netbsd", "windows":
		return runtime.GOARCH == "arm64" || runtime.GOARCH == "amd64" && cpu.X86.HasSSE41
	case "dragonfly", "solaris", "illumos":
		return runtime.GOARCH == "amd64" && cpu.X86.HasSSE41
	}
	return false
}

// dump writes a module to a folder that AGENTVM_DEBUG=jitdump makes below the temporary one. Who wants to look at modules
// sees when some are missing.
func (t *translator) dump(key [sha256.Size]byte, module []byte, log *slog.Logger) {
	if !debugenv.Has("jitdump") {
		return
	}
	t.dumpOnce.Do(func() {
		var err error
		t.dumpDir, err = os.MkdirTemp("", "agentvm-jit-") // a random name: no other program can have put a link there
		log.Warn("AGENTVM_DEBUG=jitdump writes translated code", "folder", t.dumpDir, "error", err)
	})
	if t.dumpDir != "" {
		_ = os.WriteFile(filepath.Join(t.dumpDir, fmt.Sprintf("%x.wasm", key[:12])), module, 0o600)
	}
}

// close ends the goroutine and keeps the profile, without which the next process takes longer.
func (t *translator) close() {
	close(t.done)
	t.wait.Wait()
	_ = t.profile.save(t.cacheDir, t.cacheKey)
}

// begin starts the goroutine.
func (t *translator) begin() { t.start.Do(func() { t.wait.Go(t.work) }) }

// submit queues a job; false when there are too many.
func (t *translator) submit(j *job) bool {
	t.begin()
	select {
	case t.queue <- j:
		return true
	default:
		return false
	}
}

func (t *translator) work() {
	_ = t.profile.load(t.cacheDir, t.cacheKey) // without, it is made again
	for {
		select {
		case <-t.done:
			return
		case j := <-t.queue:
			if j.to.closed.Load() {
				continue
			}
			made, took := t.timed(j)
			j.to.deliver(result{j.request, made, took})
			t.tidy(j.log())
		}
	}
}

// timed is translate with what it took.
func (t *translator) timed(j *job) (*translation, time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	made := t.translate(j)
	return made, min(threadTime()-began, translationCost(made.region.Instructions))
}

// tidyEvery is how many modules a process may add to the folder of compiled code between looking at it, which it does behind its first:
// many processes never come to a second time.
const tidyEvery = 128

// tidy keeps the folder of compiled code within its bounds.
func (t *translator) tidy(log *slog.Logger) {
	if t.compiled++; t.cacheDir == "" || t.compiled%tidyEvery != 1 {
		return
	}
	if err := boundCache(t.cacheDir, time.Now()); err != nil {
		log.Debug("the folder of compiled code could not be tidied up", "error", err)
	}
}

// lookup finds a translation that is there, nil otherwise. It is the caller's to release.
func (t *translator) lookup(key [sha256.Size]byte) *translation {
	t.mu.Lock()
	defer t.mu.Unlock()
	made := t.known[key]
	if made != nil {
		made.users.Add(1)
	}
	return made
}

func (made *translation) release() { made.users.Add(-1) }

// translate makes a translation, or finds the one that another machine has asked for. It is the caller's to release.
func (t *translator) translate(j *job) *translation {
	if made := t.lookup(j.key); made != nil {
		return made
	}
	made := t.compile(j)
	t.mu.Lock()
	defer t.mu.Unlock()
	if other := t.known[j.key]; other != nil { // a machine that waits for its translations was faster
		other.users.Add(1)
		return other
	}
	made.users.Add(1)
	t.known[j.key] = made
	t.order = append(t.order, made)
	t.bytes.Add(made.bytes)
	t.forgetUnused() // a translation without a region, or one that comes too late, is never installed, which would free others
	return made
}

// compile translates and compiles. wazero's compiler is trusted, but it works on what a guest has written: should it panic over that,
// the guest stays interpreted.
func (t *translator) compile(j *job) (made *translation) {
	log := j.log()
	defer func() {
		if p := recover(); p != nil {
			log.Warn("hot code stays interpreted", "error", p)
			made = &translation{key: j.key, bytes: bytesPerNothing}
		}
	}()
	made = &translation{key: j.key, bytes: bytesPerNothing}
	region, ok := jit.Translate(j.layout, j.request.request)
	if !ok {
		return made
	}
	t.dump(j.key, region.Module, log)
	compiled, err := t.compileModule(region.Module)
	if err != nil {
		log.Warn("hot code stays interpreted", "error", err)
		return made
	}
	made.bytes = int64(len(region.Module))*bytesPerByte + bytesPerModule
	region.Module = nil
	made.region, made.compiled = region, compiled
	return made
}

// compileModule compiles a module also when its file cannot be kept: wazero 1.12 has it in memory then, but gives an error. The second call
// finds it there, and has one hold on it too many.
func (t *translator) compileModule(module []byte) (wazero.CompiledModule, error) {
	compiled, err := t.runtime.CompileModule(context.Background(), module)
	if err == nil || t.cacheDir == "" {
		return compiled, err
	}
	if compiled, again := t.runtime.CompileModule(context.Background(), module); again == nil {
		return compiled, compiled.Close(context.Background())
	}
	return nil, err
}

// Estimates of what a module costs: native code for each byte of it, and what goes with it.
const (
	bytesPerByte    = 4
	bytesPerModule  = 8 << 10
	bytesPerNothing = 256 // to know that nothing can be translated
)

// forget drops the oldest translations that no machine uses until the limit holds.
func (t *translator) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetUnused()
}

// forgetUnused is forget for those who have the lock.
func (t *translator) forgetUnused() {
	if t.bytes.Load() <= t.limit {
		return
	}
	kept := t.order[:0]
	for _, made := range t.order {
		if t.bytes.Load() <= t.limit || made.users.Load() != 0 {
			kept = append(kept, made)
			continue
		}
		delete(t.known, made.key)
		t.bytes.Add(-made.bytes)
		if made.compiled != nil {
			_ = made.compiled.Close(context.Background())
		}
	}
	clear(t.order[len(kept):])
	t.order = kept
}
