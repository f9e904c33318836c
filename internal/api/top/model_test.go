package top

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/vm"
)

// fake is a Source that notes what it is to do.
type fake struct {
	reading Reading
	did     []string
	text    string
	err     error
}

func (f *fake) Read(context.Context) (Reading, error) { return f.reading, f.err }
func (f *fake) Change(_ context.Context, name string, rule egress.Rule, allow bool) (int, error) {
	f.did = append(f.did, fmt.Sprintf("change %s %s %v", name, rule, allow))
	return 2, f.err
}
func (f *fake) Pause(_ context.Context, name string) error {
	f.did = append(f.did, "pause "+name)
	return nil
}
func (f *fake) Resume(_ context.Context, name string) error {
	f.did = append(f.did, "resume "+name)
	return nil
}
func (f *fake) Stop(_ context.Context, name string) error {
	f.did = append(f.did, "stop "+name)
	return nil
}
func (f *fake) Jobs(context.Context, string) ([]vm.JobInfo, error) {
	return []vm.JobInfo{{ID: "00000001", Args: []string{"sleep", "\x1b[2J9"}, Started: f.reading.At}}, nil
}
func (f *fake) Output(context.Context, string, string) ([]byte, error) { return []byte(f.text), nil }
func (f *fake) Log(context.Context, string) ([]byte, error)            { return []byte(f.text), nil }

// screen is a monitor that a test looks at.
type screen struct {
	t *testing.T
	m *model
	f *fake
}

var testTime = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func connection(name, verdict, reason, host string) Connection {
	return Connection{name, egress.Event{
		Time: testTime, Kind: egress.KindTCP, Verdict: verdict, Reason: reason, Names: []string{host}, Destination: netip.MustParseAddrPort("192.0.2.1:443"), Process: "curl[7]", Message: "a message",
	}}
}

func newScreen(t *testing.T) *screen {
	f := &fake{reading: Reading{At: testTime, VMs: []VM{
		{Name: "dev", State: client.Running, CPU: 0.254, Memory: 130 << 20, Disk: 5 << 20, Received: 2e6, Started: testTime.Add(-time.Hour)},
		{Name: "old", State: client.Stopped, Disk: 1 << 30},
		{Name: "web", State: client.Paused, Started: testTime.Add(-time.Minute)},
	}, Connections: []Connection{
		connection("dev", egress.VerdictAllow, egress.ReasonAllowRule, "pypi.org"),
		connection("web", egress.VerdictDeny, egress.ReasonNotAllowed, "denied.example"),
		connection("dev", egress.VerdictDeny, egress.ReasonLoopback, "localhost"),
	}}}
	s := &screen{t, newModel(t.Context(), Config{Source: f, WriteRule: func(rule egress.Rule, allow bool) (string, error) {
		f.did = append(f.did, fmt.Sprintf("write %s %v", rule, allow))
		return "written", nil
	}}), f}
	s.send(s.m.read())
	return s
}

// send gives the model a message, and then what its commands say, except for ticks.
func (s *screen) send(msg tea.Msg) {
	s.t.Helper()
	_, command := s.m.Update(msg)
	if _, reading := msg.(readingMsg); command != nil && !reading {
		s.send(command())
	}
	s.check()
}

func (s *screen) press(keys ...string) {
	s.t.Helper()
	for _, key := range keys {
		msg := tea.KeyPressMsg{Text: key, Code: []rune(key)[0]}
		for name, code := range map[string]rune{"tab": tea.KeyTab, "down": tea.KeyDown, "up": tea.KeyUp, "enter": tea.KeyEnter, "esc": tea.KeyEscape} {
			if key == name {
				msg = tea.KeyPressMsg{Code: code}
			}
		}
		s.send(msg)
	}
}

// check looks whether the screen is as large as the terminal, and whether all sequences in it are styles of ours.
func (s *screen) check() {
	s.t.Helper()
	lines := strings.Split(s.m.View().Content, "\n")
	if len(lines) != s.m.height {
		s.t.Errorf("%d lines on %d", len(lines), s.m.height)
	}
	for _, line := range lines {
		if n := ansi.StringWidth(line); n > s.m.width {
			s.t.Errorf("%d columns on %d: %q", n, s.m.width, line)
		}
		for _, style := range []string{plain, bold, dim, reverse, red, green, yellow} {
			line = strings.ReplaceAll(line, style, "")
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
			s.t.Errorf("the terminal would interpret %q", line)
		}
	}
}

func (s *screen) shows(want ...string) {
	s.t.Helper()
	text := ansi.Strip(s.m.View().Content)
	for _, one := range want {
		if !strings.Contains(text, one) {
			s.t.Errorf("the screen has no %q:\n%s", one, text)
		}
	}
}

func (s *screen) did(want ...string) {
	s.t.Helper()
	if fmt.Sprint(s.f.did) != fmt.Sprint(want) {
		s.t.Errorf("did %q, want %q", s.f.did, want)
	}
	s.f.did = nil
}

func TestScreen(t *testing.T) {
	s := newScreen(t)
	s.shows("3 VMs, 1 running", "> dev", "running    25%    130M    5.0M    1.9M", "1h00m", "stopped", "deny  tcp  denied.example:443       curl[7]   not-in-allowl…", "? help  q quit")
	for _, size := range []tea.WindowSizeMsg{{Width: 80, Height: 24}, {Width: 40, Height: 10}, {Width: 200, Height: 60}, {Width: 20, Height: 3}, {Width: 1, Height: 1}} {
		s.send(size)
		s.press("?", "esc", "J", "esc", "tab", "down", "down", "down", "down", "up", "tab")
	}
}

func TestAllow(t *testing.T) {
	s := newScreen(t)
	s.press("a") // the newest that a rule allows: that of loopback is none
	s.did("change web denied.example:443 true")
	s.shows("web: denied.example:443 is allowed until it stops, 2 connections were cut")
	s.press("A")
	s.did("write denied.example:443 true")
	s.press("d")
	s.did("change dev pypi.org:443 false")
	s.press("D")
	s.did("write pypi.org:443 false")
	s.press("tab", "a") // what is selected, the newest
	s.did()
	s.shows("no rule would allow it: a message")
	s.press("down", "a")
	s.did("change web denied.example:443 true")
	// What is selected stays so while others come.
	s.f.reading.Connections = []Connection{connection("dev", egress.VerdictDeny, egress.ReasonNotAllowed, "later.example")}
	s.send(s.m.read())
	s.press("a")
	s.did("change web denied.example:443 true")
	s.press("down", "a")
	s.shows("pypi.org:443 was not denied")
	s.did()
	s.press("tab", "v", "a") // of dev only
	s.did("change dev later.example:443 true")
	s.f.err = client.ErrNotRunning
	s.press("a")
	s.shows("error: dev does not run")
}

func TestActions(t *testing.T) {
	s := newScreen(t)
	s.press("p", "down", "down", "p")
	s.did("pause dev", "resume web")
	s.press("x", "n", "x", "y")
	s.did("stop web")
	s.f.text = "one\n\x1b]0;title\a\ttwo\r\nthree"
	s.press("l")
	s.shows("log of web", "one", "?]0;title?    two", "three")
	s.press("q", "J")
	s.shows("jobs of web", "sleep ?[2J9", "running")
	s.press("enter")
	s.shows("output of job 00000001 of web")
	s.f.err = errors.New("the disk\x1b[31m is gone")
	s.press("q", "q")
	s.send(s.m.read())
	s.shows("error: the disk?[31m is gone")
}

// TestHostile has a guest choose names, and more of everything than a screen has.
func TestHostile(t *testing.T) {
	s := newScreen(t)
	evil := []string{"\x1b]52;c;ZXZpbA==\a", "\x1b[2J\x1b[H", "\x9b31m", "\u202etxt.exe", strings.Repeat("語", 400), "a\r\nb\tc", "\x1b[6n\x1bP$q\x1b\\", "<script>", "\xff\xfe", "e\u0301\u200d👨‍👩‍👧"}
	for _, name := range evil {
		c := connection(name, egress.VerdictDeny, egress.ReasonNotAllowed, name)
		c.Process, c.Rule, c.Message, c.Kind = name, name, name, name
		s.f.reading.Connections = append(s.f.reading.Connections, c)
		s.f.reading.VMs = append(s.f.reading.VMs, VM{Name: name, State: client.State(name), Health: name, Error: name})
	}
	s.send(s.m.read())
	s.press("tab")
	for range len(evil) {
		s.press("a", "down")
	}
	s.did() // no rule has such a name
	s.f.text = strings.Repeat(strings.Join(evil, ""), 300)
	s.press("tab", "l", "down", "up", "q")
	s.f.reading.Connections = nil
	for i := range 5 * maxConnections {
		s.f.reading.Connections = append(s.f.reading.Connections, connection("dev", egress.VerdictDeny, egress.ReasonNotAllowed, fmt.Sprintf("n%d.example", i)))
	}
	s.send(s.m.read())
	if n := len(s.m.connections); n != maxConnections {
		t.Errorf("%d connections are kept", n)
	}
	s.shows(fmt.Sprintf("n%d.example", 5*maxConnections-1))
}

func TestPause(t *testing.T) {
	s := newScreen(t)
	if got := s.m.pause(); got != time.Second {
		t.Errorf("3 VMs: %v", got)
	}
	s.m.reading.VMs = make([]VM, 20)
	if got := s.m.pause(); got != 4*time.Second {
		t.Errorf("20 VMs: %v", got)
	}
	s.m.Update(tea.BlurMsg{})
	if got := s.m.pause(); got != hiddenPause {
		t.Errorf("without focus: %v", got)
	}
}

func TestShort(t *testing.T) {
	for n, want := range map[float64]string{0: "0B", 999: "999B", 1000: "1.0K", 1023: "1.0K", 1 << 20: "1.0M", 12 << 20: "12M", 999 << 20: "999M", 1 << 30: "1.0G"} {
		if got := shortBytes(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0s", 59 * time.Second: "59s", time.Minute: "1m00s", 25 * time.Hour: "1d01h"} {
		if got := shortTime(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// TestSidecarColumn: VMs with sidecars say how many run, in as many columns as the table has without.
func TestSidecarColumn(t *testing.T) {
	s := newScreen(t)
	for _, line := range vmTable(s.f.reading.VMs, testTime) {
		if strings.Contains(line, "SIDECAR") {
			t.Errorf("a column for nothing: %q", line)
		}
	}
	s.f.reading.VMs[0].Sidecars = []client.SidecarInfo{{Name: "a", State: client.SidecarRunning}, {Name: "b", State: client.SidecarWaiting}}
	s.send(s.m.read())
	s.shows("NAME      SIDECAR STATE", "> dev       1/2     running    25%", "  old               stopped")
	if header := vmTable(s.f.reading.VMs, testTime)[0]; len(header) != 80 {
		t.Errorf("%d columns: %q", len(header), header)
	}
}
