package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"time"
)

// Linux numbers of the signals that this package names: the guest is Linux, whatever the host is.
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

	mu      sync.Mutex
	window  interruptWindow
	process signaled  // nil while booting
	last    time.Time // of the last interrupt
	given   error     // why the VM or the command was given up
}

// signaled receives signals, by their Linux numbers.
type signaled interface {
	Signal(ctx context.Context, number int) error
}

func newSession(window interruptWindow) *session {
	return &session{window: window, signals: make(chan os.Signal, 16), quit: make(chan struct{})}
}

// begin takes the signals over. The context ends when the VM is given up.
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

// end stops taking the signals.
func (s *session) end() {
	signal.Stop(s.signals)
	close(s.quit)
	s.done.Wait()
	s.cancel(nil)
}

// run notes that the command runs.
func (s *session) run(process signaled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = process
}

// setInterruptWindow changes in which time a second interrupt gives the command up.
func (s *session) setInterruptWindow(window interruptWindow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window = window
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

// interrupted notes an interrupt and says whether it came within the window of the one before. The caller holds mu.
func (s *session) interrupted() bool {
	now := time.Now()
	again := now.Sub(s.last) < time.Duration(s.window)
	s.last = now
	return again
}

// typedInterrupt notes a Ctrl-C that goes to the command's terminal.
func (s *session) typedInterrupt() {
	s.mu.Lock()
	again := s.interrupted()
	s.mu.Unlock()
	if again {
		s.giveUp(signalInterrupt)
	}
}

// giveUp makes run return because of a signal, which switches the VM off.
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

// explain replaces the error that giving up has caused by the reason for giving up.
func (s *session) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.given != nil {
		return s.given
	}
	return err
}
