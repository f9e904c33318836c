package live_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"agentvm/internal/api/live"
)

// TestInputWhole: what was accepted is read, in its order and whole, before the end; an empty piece ends nothing.
func TestInputWhole(t *testing.T) {
	in := live.NewInput(make(chan struct{}))
	var writing sync.WaitGroup
	writing.Go(func() {
		for _, piece := range []string{"one ", "", "two ", "three"} {
			if err := in.Write(t.Context(), []byte(piece)); err != nil {
				t.Errorf("%q: %v", piece, err)
			}
		}
		in.End()
		in.End()
	})
	got, err := io.ReadAll(iotest.OneByteReader(in))
	writing.Wait()
	if string(got) != "one two three" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestInputEnds: whoever waits learns why nothing comes of it, and nothing is accepted after the end.
func TestInputEnds(t *testing.T) {
	for name, test := range map[string]struct {
		end         func(in *live.Input, done chan struct{}, cancel func())
		want, after error // of a writer that waits, and of one that comes later
	}{
		"by a client":      {func(in *live.Input, _ chan struct{}, _ func()) { in.End() }, live.ErrInputEnded, live.ErrInputEnded},
		"with the process": {func(_ *live.Input, done chan struct{}, _ func()) { close(done) }, live.ErrProcessEnded, live.ErrProcessEnded},
		"the client goes":  {func(_ *live.Input, _ chan struct{}, cancel func()) { cancel() }, context.Canceled, context.Canceled},
		"both": {func(in *live.Input, done chan struct{}, _ func()) {
			in.End()
			synctest.Wait()
			close(done)
		}, live.ErrInputEnded, live.ErrInputEnded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan struct{})
				in := live.NewInput(done)
				var waiting sync.WaitGroup
				for range 3 {
					waiting.Go(func() {
						if err := in.Write(ctx, []byte("x")); !errors.Is(err, test.want) {
							t.Errorf("who waited got %v", err)
						}
					})
				}
				synctest.Wait()
				test.end(in, done, cancel)
				waiting.Wait()
				if err := in.Write(ctx, []byte("x")); !errors.Is(err, test.after) {
					t.Errorf("who came later got %v", err)
				}
			})
		})
	}
}

// TestInputReaderEnds: a process that waits for input gets its end.
func TestInputReaderEnds(t *testing.T) {
	for _, byProcess := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			done := make(chan struct{})
			in := live.NewInput(done)
			var reading sync.WaitGroup
			reading.Go(func() {
				if n, err := in.Read(make([]byte, 8)); n != 0 || err != io.EOF {
					t.Errorf("%d, %v", n, err)
				}
			})
			synctest.Wait()
			if byProcess {
				close(done)
			} else {
				in.End()
			}
			reading.Wait()
		})
	}
}

// TestInputAtOnce: of many writers at once each piece arrives whole, and no byte of a piece that was refused.
func TestInputAtOnce(t *testing.T) {
	const writers, length = 16, 100
	in := live.NewInput(make(chan struct{}))
	var mu sync.Mutex
	accepted := 0
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for n := range 50 {
				if w == 0 && n == 25 {
					in.End()
				}
				switch err := in.Write(t.Context(), bytes.Repeat([]byte{byte(w)}, length)); {
				case err == nil:
					mu.Lock()
					accepted++
					mu.Unlock()
				case !errors.Is(err, live.ErrInputEnded):
					t.Error(err)
				}
			}
		})
	}
	got, err := io.ReadAll(in)
	writing.Wait()
	if err != nil || len(got) != accepted*length {
		t.Fatalf("%d bytes of %d pieces, %v", len(got), accepted, err)
	}
	for n := 0; n < len(got); n += length {
		if bytes.Count(got[n:n+length], got[n:n+1]) != length {
			t.Fatalf("the piece at %d is mixed with another", n)
		}
	}
}
