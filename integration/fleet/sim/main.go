// Command sim plays a day's busiest hour of a cluster's sandboxes through the rules of the gateway (cmd/agentvm-gateway/fleet), with costs that were measured,
// and says what the API server, the object store and the nodes have to bear:
//
//	go run ./integration/fleet/sim -per-day 100000
//	go run ./integration/fleet/sim -per-day 10000000 -cells 40
//
// Two traces: RL rollouts (groups of forks of one state, in turns, with long waits for a model) and interactive agents (sessions with a person's
// pauses). Arrivals are by chance (Poisson), the busiest hour has -peak times the mean. One cell is simulated; all are alike.
// Hibernation is as issued: pause writes to the object store and deletes the pod, resume claims a warm one.
package main

import (
	"container/heap"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
)

// costs are what things cost. Defaults: docs/measurements/fleet.md says where each is from.
type costs struct {
	podStart     float64 // seconds from a claim to the pod that replaces it being ready
	claim        float64 // seconds
	pause        float64
	resume       float64
	runMemory    float64 // MiB of a pod that runs
	forkMemory   float64 // MiB of a fork in its parent's pod
	claimWrites  float64 // of the API server: a claim, and the pod that replaces it
	endWrites    float64 // deletion of a pod
	recordWrites float64 // a record that is changed without a pod
	chunks       float64 // objects that a pause writes
	chunkBytes   float64
	fetched      float64 // objects that a resume reads before the first command
}

// trace is one kind of use.
type trace struct {
	name      string
	share     float64 // of sandboxes
	group     int     // forks that begin together
	turns     float64 // mean
	work      float64 // seconds of a turn, mean
	wait      float64 // seconds between turns, mean
	hibernate float64 // after so long without work; 0: at each turn's end
}

// kinds are the traces. The first hibernates after so many seconds without work.
func kinds(hibernate float64) []trace {
	return []trace{
		{"rollouts", 0.8, 64, 20, 4, 30, hibernate},
		{"interactive", 0.2, 1, 12, 8, 120, 300},
	}
}

// event is what happens to a sandbox.
type event struct {
	at   float64
	what int
	box  *box
}

const (
	arrives = iota
	works
	waits
	sleeps
	replaced
)

type box struct {
	*trace
	turns  int
	state  int // running, or hibernated
	forked bool
}

const (
	running = iota
	hibernated
)

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// world is a cell while it is simulated.
type world struct {
	costs
	queue   events
	random  *rand.Rand
	pool    int               // pods that wait
	waiting []func(t float64) // claims that wait for one, the first first
	since   []float64

	measuring                bool
	running, forks, sleeping int
	peakMemory               float64
	peakRunning, peakAsleep  int
	writes, puts, gets       float64
	bytes                    float64
	claims                   int
	waits                    []float64
}

func (w *world) after(at, delay float64, what int, b *box) {
	heap.Push(&w.queue, event{at + delay, what, b})
}

func (w *world) exp(mean float64) float64 { return w.random.ExpFloat64() * mean }

// claim takes a warm pod at a time, or waits for one, and then calls do.
func (w *world) claim(t float64, do func(t float64)) {
	if w.pool == 0 {
		w.waiting, w.since = append(w.waiting, do), append(w.since, t)
		return
	}
	w.pool--
	w.won(t, 0, do)
}

func (w *world) won(t, waited float64, do func(float64)) {
	if w.measuring {
		w.claims++
		w.writes += w.claimWrites
		w.waits = append(w.waits, waited)
	}
	w.after(t, w.podStart*(0.8+0.4*w.random.Float64()), replaced, nil)
	do(t + w.costs.claim)
}

func (w *world) count(running, forks, sleeping int) {
	w.running += running
	w.forks += forks
	w.sleeping += sleeping
	if w.measuring {
		w.peakRunning, w.peakAsleep = max(w.peakRunning, w.running+w.forks), max(w.peakAsleep, w.sleeping)
		w.peakMemory = max(w.peakMemory, float64(w.running+w.pool)*w.runMemory+float64(w.forks)*w.forkMemory)
	}
}

// begin is a turn of a sandbox whose pod it has.
func (w *world) begin(t float64, b *box) { w.after(t, 0, works, b) }

func (w *world) step(e event) {
	b := e.box
	switch e.what {
	case replaced:
		if len(w.waiting) > 0 {
			do, since := w.waiting[0], w.since[0]
			w.waiting, w.since = w.waiting[1:], w.since[1:]
			w.won(e.at, e.at-since, do)
			return
		}
		w.pool++
	case arrives: // a group: one claims, the others are its forks until they hibernate
		w.claim(e.at, func(t float64) {
			w.count(1, 0, 0)
			w.begin(t, b)
			for range b.group - 1 {
				fork := &box{trace: b.trace, turns: 1 + int(w.exp(b.trace.turns)), forked: true}
				w.count(0, 1, 0)
				w.begin(t, fork)
			}
			if b.group > 1 && w.measuring {
				w.writes += w.recordWrites * math.Ceil(float64(b.group-1)/16) // of 16 forks at a time
			}
		})
	case works:
		b.turns--
		w.after(e.at, w.exp(b.work), waits, b)
	case waits:
		if b.turns <= 0 {
			w.leave(b)
			if w.measuring {
				w.writes += map[bool]float64{false: w.endWrites, true: w.recordWrites}[b.forked]
			}
			return
		}
		wait := w.exp(b.wait)
		if wait > b.hibernate+w.pause { // what the gateway cannot know, but its clients' pauses say at each turn's end
			w.after(e.at, b.hibernate, sleeps, b)
			w.after(e.at, wait, works, b)
			b.state = running
			return
		}
		w.after(e.at, wait, works, b)
	case sleeps:
		w.leave(b)
		w.count(0, 0, 1)
		b.state = hibernated
		if w.measuring {
			w.writes += map[bool]float64{false: w.endWrites, true: w.recordWrites}[b.forked] + 2*w.recordWrites // and the Lease that remembers it
			w.puts += w.chunks + 1
			w.bytes += w.chunks * w.chunkBytes
		}
		b.forked = false // it comes back in a pod of its own
	}
}

func (w *world) leave(b *box) {
	if b.forked {
		w.count(0, -1, 0)
	} else {
		w.count(-1, 0, 0)
	}
}

func main() {
	c := costs{}
	perDay := flag.Float64("per-day", 100000, "sandboxes a day")
	cells := flag.Int("cells", 1, "clusters that share them")
	peak := flag.Float64("peak", 3, "the busiest hour against the mean")
	pool := flag.Int("pool", 0, "warm pods of a cell (default: what the mean of claims needs, and half as much again)")
	hibernate := flag.Float64("hibernate", 0, "seconds without work after which rollouts are hibernated; 0: at each turn's end")
	seed := flag.Uint64("seed", 1, "of chance")
	flag.Float64Var(&c.podStart, "pod-start", 4, "seconds until a claimed pod is replaced")
	flag.Float64Var(&c.claim, "claim", 0.04, "seconds")
	flag.Float64Var(&c.pause, "pause", 0.5, "seconds")
	flag.Float64Var(&c.resume, "resume", 0.3, "seconds")
	flag.Float64Var(&c.runMemory, "memory", 100, "MiB of a pod that runs, its guest's pages included")
	flag.Float64Var(&c.forkMemory, "fork-memory", 25, "MiB of a fork in its parent's pod, its changed pages included")
	flag.Float64Var(&c.claimWrites, "claim-writes", 8, "writes of the API server for a claim and the pod that replaces it")
	flag.Float64Var(&c.endWrites, "end-writes", 3, "writes for a pod's end")
	flag.Float64Var(&c.recordWrites, "record-writes", 1, "writes for a changed record")
	flag.Float64Var(&c.chunks, "chunks", 12, "objects that a pause writes, after the first")
	flag.Float64Var(&c.chunkBytes, "chunk-bytes", 256<<10, "bytes of one, compressed")
	flag.Float64Var(&c.fetched, "fetched", 40, "objects that a resume reads before its first command")
	flag.Parse()
	if *perDay <= 0 || *cells < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "sim: want -per-day above 0, -cells of 1 or more, and no arguments")
		os.Exit(2)
	}
	const warmUp, measured = 1800.0, 3600.0
	rate := *perDay / 86400 * *peak / float64(*cells) // sandboxes a second of the cell
	w := &world{costs: c, random: rand.New(rand.NewPCG(*seed, 0))}
	// The mean number of claims a second is what the pool is made for: arrivals of groups, and resumes.
	claims, traces := 0.0, kinds(*hibernate)
	for _, t := range traces {
		claims += rate * t.share * (1/float64(t.group) + math.Max(0, t.turns-1)*math.Exp(-(t.hibernate+c.pause)/t.wait))
	}
	w.pool = *pool
	if w.pool == 0 {
		w.pool = int(math.Ceil(claims*c.podStart*1.5)) + 5
	}
	size := w.pool
	for i := range traces {
		t := &traces[i]
		gap := float64(t.group) / (rate * t.share)
		for at := w.exp(gap); at < warmUp+measured; at += w.exp(gap) {
			w.queue = append(w.queue, event{at, arrives, &box{trace: t, turns: 1 + int(w.exp(t.turns))}})
		}
	}
	heap.Init(&w.queue)
	for len(w.queue) > 0 {
		e := heap.Pop(&w.queue).(event)
		if e.at > warmUp+measured {
			break
		}
		w.measuring = e.at > warmUp
		if e.what == works && e.box.state == hibernated { // it has to be resumed first
			b := e.box
			if w.measuring {
				w.writes += 2 * w.recordWrites
				w.gets += w.fetched + 1
				w.bytes += w.fetched * w.chunkBytes
			}
			b.state = running
			w.claim(e.at, func(t float64) {
				w.count(1, 0, -1)
				w.begin(t+w.resume, b)
			})
			continue
		}
		w.step(e)
	}
	slices.Sort(w.waits)
	at := func(q float64) float64 {
		if len(w.waits) == 0 {
			return 0
		}
		return w.waits[min(len(w.waits)-1, int(q*float64(len(w.waits))))]
	}
	fmt.Printf("%.0f sandboxes a day in %d cells, the busiest hour of a cell:\n", *perDay, *cells)
	fmt.Printf("  arrivals            %10.1f /s (of forks, too)\n", rate)
	fmt.Printf("  claims              %10.1f /s, waiting for a pod: p50 %.2f s, p99 %.2f s, with %d warm pods\n", float64(w.claims)/measured, at(.5), at(.99), size)
	fmt.Printf("  API server          %10.1f writes/s\n", w.writes/measured)
	fmt.Printf("  object store        %10.1f PUT/s, %.1f GET/s, %.1f MiB/s\n", w.puts/measured, w.gets/measured, w.bytes/measured/(1<<20))
	fmt.Printf("  running at most     %10d, hibernated at most %d\n", w.peakRunning, w.peakAsleep)
	fmt.Printf("  memory at most      %10.1f GiB: %.0f nodes of 64 GiB, %.0f by 110 pods a node\n", w.peakMemory/1024, math.Ceil(w.peakMemory/1024/60), math.Ceil(float64(w.peakRunning+size)/110))
}
