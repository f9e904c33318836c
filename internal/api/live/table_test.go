package live_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"agentvm/internal/api/live"
	"agentvm/vm"
)

// program is a process of a VM that ends when it is killed, or by end.
type program struct {
	vm.Process
	end    func()
	ended  context.Context
	writes sync.WaitGroup // of output
}

func newProgram() *program {
	p := new(program)
	p.ended, p.end = context.WithCancel(context.Background())
	return p
}

func (p *program) start(uint32) (vm.Process, error) { return p, nil }

func (p *program) Wait(context.Context) (*vm.Result, error) {
	<-p.ended.Done()
	p.writes.Wait()
	return &vm.Result{ExitCode: 5}, nil
}

func (p *program) Kill(context.Context) error {
	p.end()
	return nil
}

// Signal 1 finds the process gone, and 2 is one that the guest refuses.
func (p *program) Signal(_ context.Context, signal int) error {
	return map[int]error{1: fmt.Errorf("the guest: %w", syscall.ESRCH), 2: syscall.EPERM}[signal]
}

// table is one whose processes have a name.
type table = live.Table[string]

func begin(t *testing.T, all *table, name string) (*live.Process[string], *program) {
	t.Helper()
	p, program := live.New(name, false, true), newProgram()
	if err := all.Start(p, program.start); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return p, program
}

// TestPlaces: programs that run have a place each, also while they are started; those that have ended make room, the oldest first.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &table{Max: 3, Keep: time.Minute}
		refused := func(want error) {
			t.Helper()
			err := all.Start(live.New("", false, true), func(uint32) (vm.Process, error) { return nil, errors.New("it was started") })
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		p1, one := begin(t, all, "one")
		p2, two := begin(t, all, "two")
		started := make(chan struct{})
		slow := newProgram()
		var starting sync.WaitGroup
		starting.Go(func() {
			if err := all.Start(live.New("slow", false, true), func(id uint32) (vm.Process, error) {
				if all.Find(id) != nil {
					t.Error("a process is found before it runs")
				}
				<-started
				return slow, nil
			}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		refused(live.ErrFull)
		close(started)
		starting.Wait()
		refused(live.ErrFull)
		one.end()
		synctest.Wait()
		time.Sleep(time.Second)
		two.end()
		synctest.Wait()
		if all.Find(p1.ID) != p1 || all.Find(p2.ID) != p2 {
			t.Error("those that have ended are not kept")
		}
		p4, four := begin(t, all, "four")
		if all.Find(p1.ID) != nil || all.Find(p2.ID) != p2 {
			t.Error("the oldest does not make room")
		}
		if list, last := all.List(); len(list) != 3 || last != 4 || list[0] != p2 || list[2] != p4 || list[1].Info != "slow" {
			t.Errorf("%v, %d", list, last)
		}
		time.Sleep(time.Minute)
		_, five := begin(t, all, "five")
		if all.Find(p2.ID) != nil {
			t.Error("one is kept too long")
		}
		all.Close()
		refused(live.ErrClosed)
		for _, p := range []*program{slow, four, five} {
			p.end()
		}
		all.Wait()
	})
}

// TestNoPlaceIsLost: what was not started, and what is not kept, leaves its place.
func TestNoPlaceIsLost(t *testing.T) {
	all, failed := &table{Max: 2}, errors.New("no such program")
	for range 10 {
		if err := all.Start(live.New("", false, true), func(uint32) (vm.Process, error) { return nil, failed }); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		p, program := begin(t, all, "")
		program.end()
		if r, err := p.Wait(t.Context()); err != nil || r.ExitCode != 5 || !p.Over() {
			t.Fatal(r, err)
		}
	}
	all.Wait()
	if list, last := all.List(); len(list) != 0 || last != 20 {
		t.Errorf("%v, %d", list, last)
	}
}

// TestNumbers: a table that continues another gives no number again, and processes keep theirs.
func TestNumbers(t *testing.T) {
	all := &table{Max: 3}
	all.Continue(7)
	adopted, program := live.New("adopted", false, true), newProgram()
	adopted.ID = 3
	if err := all.Start(adopted, program.start); err != nil || all.Find(3) != adopted {
		t.Fatal(err)
	}
	next, other := begin(t, all, "next")
	if next.ID != 8 {
		t.Errorf("%d, want 8", next.ID)
	}
	all.Continue(math.MaxInt32)
	if err := all.Start(live.New("", false, true), program.start); !errors.Is(err, live.ErrNumbers) {
		t.Error(err)
	}
	program.end()
	other.end()
	all.Wait()
}

// TestEnd: a process whose client has gone is killed, and one that cannot be killed keeps no client waiting for ever.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &table{Max: 3}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		p, _ := begin(t, all, "")
		if _, err := p.Wait(gone); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		p.End(gone)
		if !p.Over() {
			t.Error("it runs on")
		}
		if r, err := p.Wait(gone); err != nil || r.ExitCode != 5 {
			t.Errorf("the end is not known: %v, %v", r, err)
		}
		stuck, program := begin(t, all, "")
		program.writes.Add(1)
		began := time.Now()
		stuck.End(gone)
		if stuck.Over() || time.Since(began) > time.Minute {
			t.Errorf("after %v", time.Since(began))
		}
		program.writes.Done()
		all.Wait()
	})
}

// TestSignal: that the process has ended is one error, whoever finds it out.
func TestSignal(t *testing.T) {
	all := &table{Max: 1}
	p, program := begin(t, all, "")
	for signal, want := range map[int]error{1: live.ErrProcessEnded, 2: syscall.EPERM, 15: nil} {
		if err := p.Signal(t.Context(), signal); !errors.Is(err, want) {
			t.Errorf("%d: %v, want %v", signal, err, want)
		}
	}
	program.end()
	all.Wait()
	if err := p.Signal(t.Context(), 15); !errors.Is(err, live.ErrProcessEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// TestFollow: each follower gets all the output from when it follows, in its order and before Done, whatever the program does with its buffer.
func TestFollow(t *testing.T) {
	all := &table{Max: 1}
	p, program := live.New("", false, true), newProgram()
	var c vm.Command
	p.Connect(&c)
	follow := func() <-chan string {
		output, leave := p.Follow(t.Context().Done())
		got := make(chan string, 1)
		go func() {
			defer leave()
			var text strings.Builder
			take := func(piece live.Piece) {
				if len(piece.Data) > 32<<10 {
					t.Errorf("a piece of %d bytes", len(piece.Data))
				}
				fmt.Fprintf(&text, "%s", piece.Data)
				if piece.Stderr {
					text.WriteString("!")
				}
			}
			for {
				select {
				case piece := <-output:
					take(piece)
					continue
				case <-p.Done():
				}
				for len(output) > 0 {
					take(<-output)
				}
				got <- text.String()
				return
			}
		}()
		return got
	}
	first := follow()
	if err := all.Start(p, program.start); err != nil {
		t.Fatal(err)
	}
	buffer := []byte("one,")
	_, _ = c.Stdout.Write(buffer)
	copy(buffer, "XXXX")
	second := follow()
	want := strings.Repeat("0123456789abcdef", 1<<14)
	_, _ = c.Stdout.Write([]byte(want))
	_, _ = c.Stderr.Write([]byte("end"))
	program.end()
	if got := <-first; got != "one,"+want+"end!" {
		t.Errorf("the first has %d bytes, %.20q", len(got), got)
	}
	if got := <-second; got != want+"end!" {
		t.Errorf("the second has %d bytes, %.20q", len(got), got)
	}
	if got := <-follow(); got != "" {
		t.Errorf("one that came too late has %q", got)
	}
	all.Wait()
}

// TestSlowFollower: a program waits for a follower that takes nothing, until that is gone.
func TestSlowFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := live.New("", false, true)
		var c vm.Command
		p.Connect(&c)
		gone := make(chan struct{})
		_, leave := p.Follow(gone)
		defer leave()
		written := false
		var writing sync.WaitGroup
		writing.Go(func() {
			_, _ = c.Stdout.Write(bytes.Repeat([]byte("x"), 1<<20))
			written = true
		})
		synctest.Wait()
		if written {
			t.Error("a megabyte is kept for a follower that takes nothing")
		}
		close(gone)
		writing.Wait()
	})
}

// TestTableAtOnce: processes that are started, followed, found, listed, written to and removed at once.
func TestTableAtOnce(t *testing.T) {
	all := &table{Max: 8, Keep: time.Millisecond}
	var clients sync.WaitGroup
	for n := range 16 {
		clients.Go(func() {
			for range 20 {
				p, program := live.New("", false, true), newProgram()
				var c vm.Command
				p.Connect(&c)
				ctx, cancel := context.WithCancel(t.Context())
				output, leave := p.Follow(ctx.Done())
				err := all.Start(p, func(uint32) (vm.Process, error) {
					program.writes.Go(func() { _, _ = c.Stdout.Write(bytes.Repeat([]byte{byte(n)}, 100<<10)) })
					return program, nil
				})
				if err != nil && !errors.Is(err, live.ErrFull) {
					t.Error(err)
				}
				if err == nil {
					<-output
					list, _ := all.List()
					for _, other := range list {
						_ = other.Over()
						if found := all.Find(other.ID); found != nil && found != other {
							t.Errorf("number %d is of two", other.ID)
						}
					}
					cancel()
					p.End(ctx)
					if err := p.Input.Write(t.Context(), []byte("x")); !errors.Is(err, live.ErrProcessEnded) {
						t.Error(err)
					}
					if n%2 == 0 {
						all.Remove(p)
					}
				}
				leave()
				cancel()
			}
		})
	}
	clients.Wait()
	all.Wait()
}
