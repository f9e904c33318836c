package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"time"
)

// Linux numbers of the signals that are known by name here; the guest is Linux wherever this runs.
const (
	signalInterrupt = 2
	signalPipe      = 13
	signalTime      = 5 * time.Second // how long the guest may take to deliver a signal
)

// session passes the signals of this process on to the command:
//
//	booting ──any signal──► give up: 128+signal
//	running ──a signal───► the command ──second interrupt in time──► give up: 130
type session struct {
	signals chan os.Signal
	quit    chan struct{}
	done    sync.WaitGroup
	cancel  context.CancelCauseFunc

	mu       sync.Mutex
	patience patience
	process  signaled  // nil while booting
	last     time.Time // of the last interrupt
	given    error     // why the machine was given up
}

// signaled is what gets signals, by their Linux numbers.
type signaled interface {
	Signal(ctx context.Context, number int) error
}

func newSession(p patience) *session {
	return &session{patience: p, signals: make(chan os.Signal, 16), quit: make(chan struct{})}
}

// begin takes the signals over. The context ends when the machine is given up.
func (s *session) begin(ctx context.Context) context.Context {
	ctx, s.cancel = context.WithCancelCause(ctx)
	signal.Notify(s.signals, forwarded...)
	ignoreBrokenPipes()
	s.done.Go(func() {
		for {
			select {
			case received := <-s.signals:
				s.receive(signalNumber(received))
			case <-s.quit:
				return
			}
		}
	})
	return ctx
}

// end gives the signals back.
func (s *session) end() {
	signal.Stop(s.signals)
	close(s.quit)
	s.done.Wait()
	s.cancel(nil)
}

// run says that the command runs.
func (s *session) run(process signaled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = process
}

// setPatience changes what a second interrupt does.
func (s *session) setPatience(p patience) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patience = p
}

// receive handles a signal by its Linux number.
func (s *session) receive(number int) {
	s.mu.Lock()
	process := s.process
	again := number == signalInterrupt && s.interrupted()
	s.mu.Unlock()
	if process == nil || again {
		s.giveUp(number)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), signalTime)
	defer cancel()
	_ = process.Signal(ctx, number) // a command that has just ended needs none
}

// interrupted notes an interrupt and says whether it is one too many. The caller holds mu.
func (s *session) interrupted() bool {
	now := time.Now()
	again := now.Sub(s.last) < time.Duration(s.patience)
	s.last = now
	return again
}

// typedInterrupt is told of a Ctrl-C that goes to the command's terminal.
func (s *session) typedInterrupt() {
	s.mu.Lock()
	again := s.interrupted()
	s.mu.Unlock()
	if again {
		s.giveUp(signalInterrupt)
	}
}

// giveUp makes run return because of a signal, which switches the machine off.
func (s *session) giveUp(number int) { s.fail(exitStatus(exitSignal + number)) }

// fail makes run return err.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given == nil {
		s.given = err
		s.cancel(err)
	}
}

// explain replaces whatever error giving up has caused by the reason for it.
func (s *session) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.given != nil {
		return s.given
	}
	return err
}
