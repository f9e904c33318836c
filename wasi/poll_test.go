package wasi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tetratelabs/wazero/sys"
)

// sub is a subscription in a test, and what poll_oneoff reports for it.
type sub struct {
	userdata uint64
	event    Event
	fd       uint64
	clock    uint32
	timeout  time.Duration
	flags    uint16
}

// putSubs encodes subscriptions.
func (g *guest) putSubs(subs ...sub) uint64 {
	at := g.alloc(len(subs) * subscriptionSize)
	for i, s := range subs {
		b := g.bytes(at+uint64(i*subscriptionSize), subscriptionSize)
		le.PutUint64(b, s.userdata)
		b[8] = byte(s.event)
		if s.event == eventClock {
			le.PutUint32(b[16:], s.clock)
			le.PutUint64(b[24:], uint64(s.timeout))
			le.PutUint16(b[40:], s.flags)
		} else {
			le.PutUint32(b[16:], uint32(s.fd))
		}
	}
	return at
}

// event is a decoded result.
type event struct {
	Userdata uint64
	Errno    Errno
	Event    Event
	Bytes    uint64
	Hangup   bool
}

// poll calls poll_oneoff.
func (g *guest) poll(subs ...sub) ([]event, Errno) {
	g.Helper()
	in, out, n := g.putSubs(subs...), g.alloc(len(subs)*eventSize), g.alloc(4)
	errno := g.call("poll_oneoff", in, out, uint64(len(subs)), n)
	var events []event
	for i := range g.u32(n) {
		b := g.bytes(out+uint64(i*eventSize), eventSize)
		events = append(events, event{le.Uint64(b), Errno(le.Uint16(b[8:])), Event(b[10]), le.Uint64(b[16:]), b[24] == eventHangup})
	}
	return events, errno
}

// pollForever polls standard input and an hour's timer, and returns the error that ended the call.
func (g *guest) pollForever(ctx context.Context) error {
	in := g.putSubs(sub{event: EventRead}, sub{event: eventClock, clock: clockMonotonic, timeout: time.Hour})
	_, err := g.mod.ExportedFunction("poll_oneoff").Call(WithSystem(ctx, g.sys), in, g.alloc(2*eventSize), 2, g.alloc(4))
	return err
}

func TestPollReports(t *testing.T) {
	g, _ := newDirGuest(t, false)
	st, conn := NewStream(4), NewConn(64)
	g.sys.SetFile(5, st)
	g.sys.SetFile(6, conn)
	g.sys.SetFile(0, NewInput(nil))
	g.sys.SetFile(1, NewOutput(nil))
	file := g.mustOpen("f", oflagCreat, rightsRW, 0)
	if errno := g.write(file, "abc"); errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	if _, errno := g.seek(file, 1, 0); errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	if _, err := st.Host().Write([]byte("xy")); err != nil {
		t.Fatal(err)
	}
	far := sub{userdata: 99, event: eventClock, clock: clockMonotonic, timeout: time.Hour}
	for _, c := range []struct {
		name string
		subs []sub
		want []event
	}{
		{"stream", []sub{{userdata: 1, event: EventWrite, fd: 5}, far, {userdata: 2, event: EventRead, fd: 5}},
			[]event{{1, 0, EventWrite, 4, false}, {2, 0, EventRead, 2, false}}},
		{"connection without a frame", []sub{{userdata: 3, event: EventRead, fd: 6}, {userdata: 4, event: eventClock, clock: clockMonotonic, timeout: time.Millisecond}},
			[]event{{4, 0, eventClock, 0, false}}},
		{"standard streams", []sub{{userdata: 1, event: EventRead, fd: 0}, {userdata: 2, event: EventWrite, fd: 1}},
			[]event{{1, 0, EventRead, 0, false}, {2, 0, EventWrite, 0, false}}},
		{"file", []sub{{userdata: 1, event: EventRead, fd: file}, {userdata: 2, event: EventWrite, fd: file}},
			[]event{{1, 0, EventRead, 2, false}, {2, 0, EventWrite, 0, false}}},
		{"write of an input", []sub{{userdata: 1, event: EventWrite, fd: 0}, far}, []event{{1, ErrnoBadf, EventWrite, 0, false}}},
		{"clocks", []sub{far, {userdata: 1, event: eventClock}, {userdata: 2, event: eventClock, clock: clockMonotonic, timeout: 1}, {userdata: 3, event: eventClock, clock: clockMonotonic, timeout: 1, flags: clockAbstime}},
			[]event{{1, 0, eventClock, 0, false}, {3, 0, eventClock, 0, false}}},
		{"unknown clock", []sub{far, {userdata: 1, event: eventClock, clock: 9}}, []event{{1, ErrnoInval, eventClock, 0, false}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.TB = t
			got, errno := g.poll(c.subs...)
			if c.name == "clocks" && len(got) == 3 {
				got = append(got[:1], got[2:]...) // the one of a nanosecond may have passed or not
			}
			if diff := cmp.Diff(c.want, got); diff != "" || errno != ErrnoSuccess {
				t.Errorf("%v (-want +got):\n%s", errno, diff)
			}
		})
	}
	if err := st.Host().Close(); err != nil {
		t.Fatal(err)
	}
	got, _ := g.poll(sub{event: EventRead, fd: 5})
	if diff := cmp.Diff([]event{{0, 0, EventRead, 2, true}}, got); diff != "" {
		t.Errorf("after the host's close (-want +got):\n%s", diff)
	}
}

func TestPollRefuses(t *testing.T) {
	g := newGuest(t, Config{})
	in := g.putSubs(sub{event: eventClock})
	end := uint64(g.mod.Memory().Size())
	n := g.alloc(4)
	g.want(ErrnoInval, "poll_oneoff", in, in, 0, n)
	g.want(ErrnoInval, "poll_oneoff", in, in, 1<<31, n)
	g.want(ErrnoFault, "poll_oneoff", end-16, in, 1, n)
	g.want(ErrnoFault, "poll_oneoff", in, end-16, 1, n)
	g.want(ErrnoFault, "poll_oneoff", in, in, 1, end)
	g.want(ErrnoSuccess, "poll_oneoff", in, in, 1, n) // the same memory for both
	if _, errno := g.poll(sub{event: EventRead, fd: 1<<32 - 1}); errno != ErrnoBadf {
		t.Errorf("descriptor that is not open: %v", errno)
	}
	if _, errno := g.poll(sub{event: 3}); errno != ErrnoInval {
		t.Errorf("unknown event: %v", errno)
	}
}

func TestPollSleeps(t *testing.T) {
	g := newGuest(t, Config{Clock: fakeClock{real: 1e9, mono: 5}})
	for _, s := range []sub{
		{event: eventClock, clock: clockMonotonic, timeout: 20 * time.Millisecond},
		{event: eventClock, clock: clockRealtime, timeout: time.Second + 20*time.Millisecond, flags: clockAbstime},
	} {
		start := time.Now()
		if _, errno := g.poll(s); errno != ErrnoSuccess {
			t.Error(errno)
		}
		if d := time.Since(start); d < 20*time.Millisecond {
			t.Errorf("slept %v, want 20ms", d)
		}
	}
}

// A poll for several descriptors returns when one of them has something.
func TestPollWakesForStreams(t *testing.T) {
	g := newGuest(t, Config{})
	st, conn := NewStream(16), NewConn(64)
	g.sys.SetFile(0, st)
	g.sys.SetFile(4, conn)
	for _, c := range []struct {
		name string
		do   func() error
		want uint64
	}{
		{"input", func() error { _, err := st.Host().Write([]byte("x")); return err }, 1},
		{"frame", func() error { _, err := conn.Host().Write([]byte("\x00\x00\x00\x01f")); return err }, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.TB = t
			failed := make(chan error, 1)
			time.AfterFunc(20*time.Millisecond, func() { failed <- c.do() })
			start := time.Now()
			got, errno := g.poll(sub{userdata: 1, event: EventRead, fd: 0}, sub{userdata: 2, event: EventRead, fd: 4},
				sub{event: eventClock, clock: clockMonotonic, timeout: 10 * time.Second})
			if errno != ErrnoSuccess || len(got) != 1 || got[0].Userdata != c.want || time.Since(start) > 5*time.Second {
				t.Errorf("%v, %v after %v", got, errno, time.Since(start))
			}
			if err := <-failed; err != nil {
				t.Error(err)
			}
			if _, errno := g.read(c.want/2*4, 16); errno != ErrnoSuccess {
				t.Error(errno)
			}
		})
	}
}

// What blocks a guest ends with the context and with Close, and the error says so.
func TestBlockedGuestStops(t *testing.T) {
	block := map[string]func(*guest, context.Context) error{
		"poll": (*guest).pollForever,
		"read": func(g *guest, ctx context.Context) error {
			vec, _ := g.iovec(8)
			_, err := g.mod.ExportedFunction("fd_read").Call(WithSystem(ctx, g.sys), 0, vec, 1, 16)
			return err
		},
		"write": func(g *guest, ctx context.Context) error {
			vec, _ := g.iovec(8, 8)
			_, err := g.mod.ExportedFunction("fd_write").Call(WithSystem(ctx, g.sys), 0, vec, 1, 16)
			if err == nil { // the first fills the stream
				_, err = g.mod.ExportedFunction("fd_write").Call(WithSystem(ctx, g.sys), 0, vec, 1, 16)
			}
			return err
		},
	}
	for name, call := range block {
		for _, c := range []struct {
			name string
			ctx  func(*guest) (context.Context, context.CancelFunc)
			want error
		}{
			{"deadline", func(*guest) (context.Context, context.CancelFunc) {
				return context.WithTimeout(context.Background(), 20*time.Millisecond)
			}, context.DeadlineExceeded},
			{"cancel", func(*guest) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(20*time.Millisecond, cancel)
				return ctx, cancel
			}, context.Canceled},
			{"close", func(g *guest) (context.Context, context.CancelFunc) {
				time.AfterFunc(20*time.Millisecond, func() { _ = g.sys.Close() })
				return context.Background(), func() {}
			}, context.Canceled},
		} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				g := newGuest(t, Config{})
				g.sys.SetFile(0, NewStream(8))
				g.want(ErrnoSuccess, "fd_fdstat_set_flags", 0, 0) // block
				ctx, cancel := c.ctx(g)
				defer cancel()
				err := call(g, ctx)
				var exit *sys.ExitError
				if !errors.As(err, &exit) || !errors.Is(err, c.want) {
					t.Errorf("call ended with %v, want an exit because of %v", err, c.want)
				}
			})
		}
	}
}

func TestWait(t *testing.T) {
	s := NewSystem(Config{})
	ctx := context.Background()
	if err := s.Wait(ctx, 0); err != nil {
		t.Error(err)
	}
	start := time.Now()
	if err := s.Wait(ctx, 10*time.Millisecond); err != nil || time.Since(start) < 10*time.Millisecond {
		t.Errorf("Wait = %v after %v", err, time.Since(start))
	}
	s.Notify(100) // has no bit and ends no Wait, only polls
	s.Notify(7)
	s.Notify(63)
	if err := s.Wait(ctx, -1); err != nil {
		t.Error(err)
	}
	if got := s.TakeReady(); got != 1<<63|1<<7 {
		t.Errorf("ready %#x", got)
	}
	time.AfterFunc(10*time.Millisecond, func() { s.Notify(1) })
	if err := s.Wait(ctx, -1); err != nil || s.TakeReady() != 2 {
		t.Errorf("Wait = %v, or the bit is not there", err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := s.Wait(short, -1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait = %v, want the deadline", err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = s.Close() })
	if err := s.Wait(ctx, time.Hour); !errors.Is(err, ErrClosed) {
		t.Errorf("Wait = %v, want ErrClosed", err)
	}
}

func TestNoSystemInContext(t *testing.T) {
	type key struct{}
	g := newGuest(t, Config{})
	res, err := g.mod.ExportedFunction("sched_yield").Call(context.Background())
	if err != nil || Errno(res[0]) != ErrnoNosys {
		t.Errorf("call without a System: %v, %v", res, err)
	}
	ctx := context.WithValue(WithSystem(context.Background(), g.sys), key{}, 1)
	if res, err := g.mod.ExportedFunction("sched_yield").Call(ctx); err != nil || Errno(res[0]) != ErrnoSuccess {
		t.Errorf("call with a derived context: %v, %v", res, err)
	}
	if !strings.Contains(ErrnoNoent.Error(), "ENOENT") || Errno(999).String() != "errno 999" {
		t.Error("names of errnos")
	}
}
