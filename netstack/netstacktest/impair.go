package netstacktest

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Impairment is what a guest's link does to frames, both ways. Probabilities are from 0 to 1; the zero value does nothing.
type Impairment struct {
	Loss      float64
	Duplicate float64
	Reorder   float64       // a frame waits until the next one has passed, or for 5 ms
	Delay     time.Duration // of every frame
	Seed      uint64        // the same seed makes the same decisions for the same frames in the same order

	// Keep says for each frame whether it passes; nil: all do. It must not block.
	Keep func(frame []byte, toGuest bool) bool
}

// reorderWait is how long a frame waits for another one to overtake it.
const reorderWait = 5 * time.Millisecond

// lane is one direction of an impaired link.
type lane struct {
	config  Impairment
	toGuest bool
	forward func([]byte)

	mu     sync.Mutex
	random *rand.Rand
	held   []byte // waits for the next frame
	ended  bool
	timers sync.WaitGroup

	late chan lateFrame // of a link with a delay
	over chan struct{}
}

func newLane(config Impairment, toGuest bool, forward func([]byte)) *lane {
	way := uint64(0)
	if toGuest {
		way = 1
	}
	l := &lane{config: config, toGuest: toGuest, forward: forward, random: rand.New(rand.NewPCG(config.Seed, way))}
	l.over = make(chan struct{})
	if config.Delay > 0 {
		l.late = make(chan lateFrame, 8*transmitQueue)
		l.timers.Add(1)
		go l.deliverLate()
	}
	return l
}

// pass does to one frame what the configuration says. The frame is the lane's now.
func (l *lane) pass(frame []byte) {
	if l.config.Keep != nil && !l.config.Keep(frame, l.toGuest) {
		return
	}
	for _, f := range l.decide(frame) {
		l.send(f)
	}
}

// decide gives the frames that are passed on now.
func (l *lane) decide(frame []byte) [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.chance(l.config.Loss) {
		return nil
	}
	if l.held == nil && l.chance(l.config.Reorder) {
		l.held = frame
		l.after(reorderWait, l.release)
		return nil
	}
	frames := [][]byte{frame}
	if l.chance(l.config.Duplicate) {
		frames = append(frames, frame)
	}
	if l.held != nil {
		frames = append(frames, l.held)
		l.held = nil
	}
	return frames
}

func (l *lane) chance(p float64) bool { return p > 0 && l.random.Float64() < p }

// release sends the frame that nothing has overtaken.
func (l *lane) release() {
	l.mu.Lock()
	frame := l.held
	l.held = nil
	l.mu.Unlock()
	if frame != nil {
		l.send(frame)
	}
}

func (l *lane) send(frame []byte) {
	if l.config.Delay == 0 {
		l.forward(frame)
		return
	}
	select {
	case l.late <- lateFrame{time.Now().Add(l.config.Delay), frame}:
	case <-l.over:
	}
}

// lateFrame is due at a time.
type lateFrame struct {
	due   time.Time
	frame []byte
}

// deliverLate keeps the frames' order, which timers of their own would not.
func (l *lane) deliverLate() {
	defer l.timers.Done()
	for {
		select {
		case f := <-l.late:
			time.Sleep(time.Until(f.due))
			l.forward(f.frame)
		case <-l.over:
			return
		}
	}
}

// after needs mu.
func (l *lane) after(wait time.Duration, f func()) {
	if l.ended {
		return
	}
	l.timers.Add(1)
	time.AfterFunc(wait, func() {
		defer l.timers.Done()
		f()
	})
}

// end waits for what is under way.
func (l *lane) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	close(l.over)
	l.timers.Wait()
}
