package nat

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestTCPStates walks connections through every order in which they can end. A step is "who:what n"; g is the guest,
// h the server on the host.
//
//	write n, read n   n bytes
//	fin, close, rst   what the one does: shutdown(SHUT_WR), close(2), close(2) with RST
//	eof, reset        what the one sees
//	state X           what Flows says
func TestTCPStates(t *testing.T) {
	cases := []struct {
		name   string
		steps  string
		reason Reason
	}{
		{"the guest ends first", "g:fin h:eof state:FIN_WAIT h:write-9 g:read-9 h:fin g:eof", ReasonDone},
		{"the host ends first", "h:fin g:eof state:CLOSE_WAIT g:write-9 h:read-9 g:fin h:eof", ReasonDone},
		{"both end at once", "g:fin h:fin g:eof h:eof", ReasonDone},
		{"both end at once, the other order", "h:fin g:fin h:eof g:eof", ReasonDone},
		{"the guest closes", "g:close h:eof h:close", ReasonDone},
		{"the host closes", "h:close g:eof g:close", ReasonDone},
		{"both close", "g:close h:close", ReasonDone},
		{"nothing was sent", "state:ESTABLISHED h:close g:eof g:close", ReasonDone},
		{"request and answer", "g:write-100 h:read-100 h:write-5000 h:close g:read-5000 g:eof g:close", ReasonDone},
		{"upload ended by FIN", "g:write-9000 g:fin h:read-9000 h:eof h:write-2 h:close g:read-2 g:eof", ReasonDone},
		{"the host's FIN behind data", "h:write-200000 h:close g:read-200000 g:eof g:close", ReasonDone},
		{"the guest's FIN behind data", "g:write-200000 g:close h:read-200000 h:eof h:close", ReasonDone},
		{"half-closed for long, guest", "g:fin h:eof h:write-100000 g:read-100000 h:write-1 g:read-1 h:fin g:eof", ReasonDone},
		{"half-closed for long, host", "h:fin g:eof g:write-100000 h:read-100000 g:write-1 h:read-1 g:fin h:eof", ReasonDone},
		{"data both ways, then both FINs", "g:write-9000 h:write-9000 g:fin h:fin g:read-9000 h:read-9000 g:eof h:eof", ReasonDone},

		{"RST of the guest", "g:rst h:reset", ReasonGuestReset},
		{"RST of the guest behind data", "g:write-9 h:read-9 g:rst h:reset", ReasonGuestReset},
		{"RST of the guest after its FIN", "g:fin h:eof state:FIN_WAIT g:rst h:broken", ReasonGuestReset},
		{"RST of the guest after the host's FIN", "h:fin g:eof state:CLOSE_WAIT g:rst h:reset", ReasonGuestReset},
		{"RST of the host", "h:rst g:reset", ReasonHostReset},
		{"RST of the host behind data", "h:write-9 g:read-9 h:rst g:reset", ReasonHostReset},
		{"RST of the host behind data that the guest has not read", "h:write-9000 state:ESTABLISHED h:rst g:reset-behind-9000", ReasonHostReset},
		{"RST of the host after the guest's FIN", "g:fin h:eof state:FIN_WAIT h:rst g:reset", ReasonHostReset},
		{"RST of the host after its FIN", "h:fin g:eof state:CLOSE_WAIT h:rst g:broken", ReasonHostReset},
		{"the host closes with bytes unread", "g:write-9 state:ESTABLISHED h:wait-9 h:close g:reset", ReasonHostReset},
		{"the host closes and the guest writes on", "h:close g:eof g:broken", ReasonHostReset},
		{"the guest closes and the host writes on", "g:close h:eof h:broken", ReasonGuestReset},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			guest, host := w.pair()
			opened := w.await(FlowOpened, 1)
			sides := map[string]*side{"g": newSide(guest, guest.Abort), "h": newSide(host, func() {
				host.SetLinger(0)
				host.Close()
			})}
			for _, step := range strings.Fields(c.steps) {
				if err := w.step(sides, step); err != nil {
					t.Fatalf("%s: %v", step, err)
				}
			}
			for _, s := range sides {
				close(s.later)
				<-s.done
			}
			closed := w.await(FlowClosed, 1)
			if closed.Reason != c.reason {
				t.Errorf("the flow ended with %q (%v), want %q", closed.Reason, closed.Err, c.reason)
			}
			if closed.Flow.ID != opened.Flow.ID || closed.Flow.State != Closed {
				t.Errorf("opened %+v, closed %+v", opened.Flow, closed.Flow)
			}
			w.eventually("the table is empty", func() bool { return len(w.nat.Flows()) == 0 })
			w.eventually("the host's connection is closed", func() bool { return w.egress.open() == 0 })
		})
	}
}

// side is one end of a connection. What it sends it sends in order, on a goroutine of its own: a write may have to wait for
// the other side's reads.
type side struct {
	tcpEnd
	reset func()
	later chan func()
	done  chan struct{}
}

type tcpEnd interface {
	net.Conn
	CloseWrite() error
}

func newSide(end tcpEnd, reset func()) *side {
	s := &side{tcpEnd: end, reset: reset, later: make(chan func(), 100), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for f := range s.later {
			f()
		}
	}()
	return s
}

// step does one step of a case.
func (w *world) step(sides map[string]*side, step string) error {
	who, what, _ := strings.Cut(step, ":")
	if who == "state" {
		w.isState(State(what))
		return nil
	}
	verb, number, _ := strings.Cut(what, "-")
	n, _ := strconv.Atoi(strings.TrimPrefix(number, "behind-"))
	s := sides[who]
	switch verb {
	case "write":
		s.later <- func() { s.Write(make([]byte, n)) }
	case "fin":
		s.later <- func() { s.CloseWrite() }
	case "close":
		s.later <- func() { s.Close() }
	case "rst":
		s.later <- s.reset
	case "read":
		_, err := io.ReadFull(s, make([]byte, n))
		return err
	case "eof":
		return want(s, 0, io.EOF)
	case "reset":
		return want(s, n, syscall.ECONNRESET)
	case "broken":
		return writeUntilBroken(s)
	case "wait":
		w.eventually("the bytes have come", func() bool { return w.nat.Flows()[0].Sent == uint64(n) })
	default:
		return errors.New("unknown step")
	}
	return nil
}

// want reads n bytes and then the end that is wanted.
func want(side tcpEnd, n int, end error) error {
	data := make([]byte, 1<<20)
	total := 0
	for {
		got, err := side.Read(data)
		total += got
		if err == nil {
			continue
		}
		if !errors.Is(err, end) || total != n {
			return fmt.Errorf("read %d bytes and then %v, want %d and then %v", total, err, n, end)
		}
		return nil
	}
}

// writeUntilBroken writes until that fails, as it has to when the peer has gone.
func writeUntilBroken(side tcpEnd) error {
	for {
		if _, err := side.Write([]byte("x")); isAny(err, resets) {
			return nil
		} else if err != nil {
			return fmt.Errorf("writing ended with %w, want a reset", err)
		}
	}
}

func (w *world) isState(want State) {
	w.Helper()
	w.eventually("the flow is "+string(want), func() bool {
		flows := w.nat.Flows()
		return len(flows) == 1 && flows[0].State == want
	})
}
