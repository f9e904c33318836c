// Command harts is the init of a guest with several processors: it runs what shows whether they see each other's stores as they must, and prints a
// line for each kind, the last of them "done". It needs a kernel for arm64 with futexes and no file system.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// lines are words of memory in cache lines of their own.
type line struct {
	word uint64
	_    [15]uint64
}

//go:noescape
func storeLoad(x, y *uint64) uint64

//go:noescape
func releaseAcquire(x, y *uint64) uint64

//go:noescape
func swapLoad(x, y *uint64) uint64

//go:noescape
func storeStore(x, y *uint64) uint64

//go:noescape
func loadLoad(x, y *uint64) uint64

//go:noescape
func storeRelease(x, y *uint64) uint64

//go:noescape
func loadAcquire(x, y *uint64) uint64

//go:noescape
func loadStore(x, y *uint64) uint64

//go:noescape
func addExclusive(at *uint64, rounds uint64)

//go:noescape
func addAtomic(at *uint64, rounds uint64)

//go:noescape
func flipAtomic(at *uint64, bit, rounds uint64)

//go:noescape
func addByCAS(at *uint64, rounds uint64)

//go:noescape
func addPair(at *[2]uint64, rounds uint64)

//go:noescape
func publishCode(at *uint32, instruction uint32)

func callCode(at uintptr) uint64

// litmus is a test of two threads, each with the two words, the second with them exchanged or not.
type litmus struct {
	name      string
	threads   [2]func(x, y *uint64) uint64
	exchanged bool // the second thread has y for x
	forbidden [2]uint64
}

var tests = []litmus{
	{"SB+dmbs", [2]func(x, y *uint64) uint64{storeLoad, storeLoad}, true, [2]uint64{0, 0}},
	{"SB+rel-acqs", [2]func(x, y *uint64) uint64{releaseAcquire, releaseAcquire}, true, [2]uint64{0, 0}},
	{"SB+swaps", [2]func(x, y *uint64) uint64{swapLoad, swapLoad}, true, [2]uint64{0, 0}},
	{"SB+dmb+rel-acq", [2]func(x, y *uint64) uint64{storeLoad, releaseAcquire}, true, [2]uint64{0, 0}},
	{"MP+dmbs", [2]func(x, y *uint64) uint64{storeStore, loadLoad}, false, [2]uint64{0, 1}},
	{"MP+rel+acq", [2]func(x, y *uint64) uint64{storeRelease, loadAcquire}, false, [2]uint64{0, 1}},
	{"LB+dmbs", [2]func(x, y *uint64) uint64{loadStore, loadStore}, true, [2]uint64{1, 1}},
}

// run executes both threads of a test again and again, each on a thread of the kernel's, and counts how often what is forbidden came out.
func (l *litmus) run(rounds int) (forbidden int) {
	const batch = 512
	var x, y [batch]line
	var out [2][batch]uint64
	var begun, ended [2]atomic.Int64
	thread := func(me int, first, second *[batch]line) {
		runtime.LockOSThread()
		for r := range rounds / batch {
			for begun[me].Store(int64(r + 1)); begun[1-me].Load() < int64(r+1); {
			}
			for i := range batch {
				out[me][i] = l.threads[me](&first[i].word, &second[i].word)
				for range (r + i*me) % 7 { // so that they meet in different ways
					runtime.KeepAlive(i)
				}
			}
			for ended[me].Store(int64(r + 1)); ended[1-me].Load() < int64(r+1); {
			}
			if me == 0 {
				for i := range batch {
					if out[0][i] == l.forbidden[0] && out[1][i] == l.forbidden[1] {
						forbidden++
					}
				}
				clear(x[:])
				clear(y[:])
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { thread(0, &x, &y) })
	second := [2]*[batch]line{&x, &y}
	if l.exchanged {
		second[0], second[1] = second[1], second[0]
	}
	both.Go(func() { thread(1, second[0], second[1]) })
	both.Wait()
	return forbidden
}

func everyThread(threads int, do func(i int)) {
	var all sync.WaitGroup
	for i := range threads {
		all.Go(func() {
			runtime.LockOSThread()
			do(i)
		})
	}
	all.Wait()
}

func check(name string, ok bool, format string, args ...any) {
	if ok {
		fmt.Println(name + ": ok")
	} else {
		fmt.Printf(name+": "+format+"\n", args...)
	}
}

func counters(threads int, rounds uint64) {
	var sum, cas, exclusive line
	pair := new(struct {
		words [2]uint64
		_     [112]byte
	})
	flips := new(line)
	everyThread(threads, func(i int) {
		addAtomic(&sum.word, rounds)
		addByCAS(&cas.word, rounds)
		addExclusive(&exclusive.word, rounds)
		flipAtomic(&flips.word, 1<<i, 2*rounds)
		addPair(&pair.words, rounds)
	})
	want := uint64(threads) * rounds
	check("ldadd", sum.word == want, "%d of %d", sum.word, want)
	check("cas", cas.word == want, "%d of %d", cas.word, want)
	check("ldxr", exclusive.word == want, "%d of %d", exclusive.word, want)
	check("ldeor", flips.word == 0, "%x", flips.word)
	check("casp", pair.words == [2]uint64{want, -want}, "%d, %d of %d", pair.words[0], -pair.words[1], want)
}

// waitFor has the other threads go on now and then, so that they are there.
func waitFor(count *atomic.Int64, round int) {
	if before := count.Load(); round%20 == 0 && runtime.NumCPU() > 1 {
		for count.Load() == before {
		}
	}
}

// mappings has a page replaced by the next one of a file again and again, each of which has its number, while the other threads read it: a thread that
// knows of a replacement reads nothing that was there before.
func mappings(threads, rounds int) {
	const page = 4096
	name := []byte("pages\x00")
	fd, _, errno := syscall.Syscall(279, uintptr(unsafe.Pointer(&name[0])), 0, 0) // memfd_create
	if errno != 0 {
		panic(errno)
	}
	if err := syscall.Ftruncate(int(fd), int64(rounds+1)*page); err != nil {
		panic(err)
	}
	all, err := syscall.Mmap(int(fd), 0, (rounds+1)*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	for i := range rounds + 1 {
		*(*uint64)(unsafe.Pointer(&all[i*page])) = uint64(i)
	}
	at, err := syscall.Mmap(int(fd), 0, page, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	word := (*uint64)(unsafe.Pointer(&at[0]))
	var known atomic.Uint64
	var stale, reads atomic.Int64
	var over atomic.Bool
	var readers sync.WaitGroup
	for range threads - 1 {
		readers.Go(func() {
			runtime.LockOSThread()
			for !over.Load() {
				least := known.Load()
				if atomic.LoadUint64(word) < least {
					stale.Add(1)
				}
				reads.Add(1)
			}
		})
	}
	for i := range rounds {
		waitFor(&reads, i)
		if _, _, errno := syscall.Syscall6(syscall.SYS_MMAP, uintptr(unsafe.Pointer(word)), page, syscall.PROT_READ, syscall.MAP_SHARED|syscall.MAP_FIXED,
			fd, uintptr(i+1)*page); errno != 0 {
			panic(errno)
		}
		known.Store(uint64(i + 1))
	}
	over.Store(true)
	readers.Wait()
	check("mappings", stale.Load() == 0, "%d of %d reads were of a page that had been replaced", stale.Load(), reads.Load())
}

// code has a function changed while other threads call it: a thread that knows of a change executes no older function.
func code(threads, rounds int) {
	const page = 4096
	at, err := syscall.Mmap(-1, 0, page, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err)
	}
	function := (*uint32)(unsafe.Pointer(&at[0]))
	const ret = 0xd65f03c0
	publishCode((*uint32)(unsafe.Pointer(&at[4])), ret)
	movz := func(n int) uint32 { return 0xd2800000 | uint32(n&0xffff)<<5 } // mov x0, n
	publishCode(function, movz(0))
	var known atomic.Uint64
	var stale, calls atomic.Int64
	var over atomic.Bool
	var callers sync.WaitGroup
	for range threads - 1 {
		callers.Go(func() {
			runtime.LockOSThread()
			for !over.Load() {
				least := known.Load()
				if callCode(uintptr(unsafe.Pointer(function))) < least {
					stale.Add(1)
				}
				calls.Add(1)
			}
		})
	}
	for i := range min(rounds, 0xffff) {
		waitFor(&calls, i)
		publishCode(function, movz(i+1))
		known.Store(uint64(i + 1))
	}
	over.Store(true)
	callers.Wait()
	check("code", stale.Load() == 0, "%d of %d calls executed what was replaced", stale.Load(), calls.Load())
}

// channels has threads wake each other: futexes and interrupts between processors.
func channels(threads, rounds int) {
	ring := make([]chan int, threads)
	for i := range ring {
		ring[i] = make(chan int)
	}
	done := make(chan int)
	for i := range ring {
		go func() {
			runtime.LockOSThread()
			for v := range ring[i] {
				if v >= rounds {
					done <- v
					return
				}
				ring[(i+1)%threads] <- v + 1
			}
		}()
	}
	ring[0] <- 0
	select {
	case <-done:
		check("channels", true, "")
	case <-time.After(2 * time.Minute):
		check("channels", false, "a thread was not woken")
	}
}

func option(name string, standard int) int {
	_ = syscall.Mkdir("/proc", 0o755)
	_ = syscall.Mount("proc", "/proc", "proc", 0, "")
	line, _ := os.ReadFile("/proc/cmdline")
	for word := range strings.FieldsSeq(string(line)) {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			if n, err := strconv.Atoi(value); err == nil {
				return n
			}
		}
	}
	return standard
}

func main() {
	rounds, threads := option("rounds", 1), runtime.NumCPU()
	fmt.Println("processors:", threads)
	for _, l := range tests {
		n := 20_000 * rounds
		forbidden := l.run(n)
		check(l.name, forbidden == 0, "%d of %d times what is forbidden", forbidden, n)
	}
	counters(threads, uint64(20_000*rounds))
	mappings(threads, 500*rounds)
	code(threads, 1000*rounds)
	channels(max(threads, 2), 500*rounds)
	fmt.Println("done")
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}
