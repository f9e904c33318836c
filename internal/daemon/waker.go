package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// The activator is confined, and what it starts would be, too. So before that it starts a waker: a process that is not confined and does one thing,
// to wake a hibernated VM whose key is shown. It ends with the activator.
//
//	activator ── wake, key ──► waker ── Store.Connect ──► daemon
//	       ◄── error or none ──┘
//
// The activator may read which VMs there are and cannot change them, so that whoever takes it over can wake hibernated VMs as they are, and no more.

// maxWakes bounds the VMs that a waker wakes at a time.
const maxWakes = 64

// wakeRequest and wakeAnswer are messages as those of the handshake. Answers have no order.
type wakeRequest struct {
	Number uint64 `json:"number"`
	VM     string `json:"vm"`
	Key    string `json:"key"` // Restoration.Key
}

type wakeAnswer struct {
	Number uint64 `json:"number"`
	Error  string `json:"error,omitempty"`
	Gone   bool   `json:"gone,omitempty"` // it is not hibernated any more, or not there
}

var errWakerEnded = errors.New("the process that wakes VMs has ended")

// RunWaker is the whole life of a waker of a store: it reads requests until in ends.
func RunWaker(ctx context.Context, s Store, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel() // before it waits
	freeMemory()   // of the program's start
	var mu sync.Mutex
	places := make(chan struct{}, maxWakes)
	for {
		var r wakeRequest
		if err := readMessage(in, &r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			answer := wakeAnswer{Number: r.Number}
			if err := s.wakeHibernated(ctx, r.VM, r.Key); err != nil {
				answer.Error = fmt.Sprintf("%.1000s", err.Error())
				answer.Gone = errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotRunning)
			}
			mu.Lock()
			defer mu.Unlock()
			_ = writeMessage(out, answer) // an activator that has ended needs none
			freeMemory()                  // for perhaps days
		})
	}
}

// wakeHibernated wakes a hibernated VM with a key, and waits until it runs.
func (s Store) wakeHibernated(ctx context.Context, name, key string) error {
	ctx, cancel := context.WithTimeout(ctx, activatorWakeTime)
	defer cancel()
	paths, err := s.existing(name)
	if err != nil {
		return err
	}
	if record, err := paths.readRestoration(); err != nil || !record.hasKey(key) {
		return errors.Join(ErrNotRunning, err) // it has been woken already, or is another VM
	}
	client, err := s.connectReady(ctx, name)
	if err != nil {
		return err
	}
	return client.Close()
}

// waker is the activator's side. Its methods may be called by several goroutines.
type waker struct {
	end     func() error  // ends the process
	reading chan struct{} // closed when it has ended

	mu      sync.Mutex
	to      io.Writer
	last    uint64
	waiting map[uint64]chan wakeAnswer // nil when it has ended
}

// startWaker starts one.
func (s Store) startWaker() (*waker, error) {
	args := s.WakerCommand
	if len(args) == 0 {
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		args = []string{program, "daemon", "waker", "--dir", s.Dir}
	}
	command := exec.Command(args[0], args[1:]...)
	command.Stderr = os.Stderr
	to, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	from, err := command.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, to.Close())
	}
	keepToThisProcess()
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the process that wakes VMs: %w", err)
	}
	w := &waker{to: to, waiting: make(map[uint64]chan wakeAnswer), reading: make(chan struct{})}
	w.end = func() error {
		err := to.Close()
		<-w.reading
		return errors.Join(err, command.Wait())
	}
	go func() {
		defer close(w.reading)
		w.read(from)
	}()
	return w, nil
}

func (w *waker) read(from io.Reader) {
	for {
		var answer wakeAnswer
		if readMessage(from, &answer) != nil {
			break
		}
		w.mu.Lock()
		if c := w.waiting[answer.Number]; c != nil {
			c <- answer // which has room for it
			delete(w.waiting, answer.Number)
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.waiting {
		close(c)
	}
	w.waiting = nil
}

// wake has a hibernated VM woken, and waits until it runs.
func (w *waker) wake(ctx context.Context, name, key string) error {
	answers := make(chan wakeAnswer, 1)
	w.mu.Lock()
	if w.waiting == nil {
		w.mu.Unlock()
		return errWakerEnded
	}
	w.last++
	number := w.last
	w.waiting[number] = answers
	err := writeMessage(w.to, wakeRequest{number, name, key}) // which is short: a pipe has room for thousands
	w.mu.Unlock()
	if err != nil {
		return errors.Join(errWakerEnded, err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case answer, ok := <-answers:
		switch {
		case !ok:
			return errWakerEnded
		case answer.Gone:
			return fmt.Errorf("%w: %s", ErrNotRunning, answer.Error)
		case answer.Error != "":
			return errors.New(answer.Error)
		}
		return nil
	}
}
